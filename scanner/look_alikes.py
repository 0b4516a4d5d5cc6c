"""Characters that pass for others: letters in other styles, and letters that look Latin.

Made by `python -m tests.support.look_alikes` on 2026-11-26 from ICU 78.3, which has the data of Unicode 17.0.
"""

from collections.abc import Mapping

# fmt: off
_SINGLE: tuple[str, str] = (
    (
        "ªºſƄƍƒƖƦƽƿǀɑɡɢɣɩɪɯɴʀʋʏʙʜʟʰʱʲʳʴʵʶʷʸˠˡˢˣˤჼᴀᴄᴅᴇᴊᴋᴍᴏᴑᴘᴛᴜᴠᴡᴢᴬᴭᴮᴰᴱᴲᴳᴴᴵ"
        "ᴶᴷᴸᴹᴺᴼᴽᴾᴿᵀᵁᵂᵃᵄᵅᵆᵇᵈᵉᵊᵋᵌᵍᵏᵐᵑᵒᵓᵔᵕᵖᵗᵘᵙᵚᵛᵜᵝᵞᵟᵠᵡᵢᵣᵤᵥᵦᵧᵨᵩᵪᵸᶃᶌᶛᶜᶝᶞᶟᶠᶡᶢᶣᶤ"
        "ᶥᶦᶧᶨᶩᶪᶫᶬᶭᶮᶯᶰᶱᶲᶳᶴᶵᶶᶷᶸᶹᶺᶻᶼᶽᶾᶿẝỿⁱⁿₐₑₒₓₔₕₖₗₘₙₚₛₜℂℊℋℌℍℎℏℐℑℒℓℕℙℚℛℜℝℤℨK"
        "ℬℭℯℰℱℳℴℹℼℽℾℿⅅⅆⅇⅈⅉⅠⅤⅩⅬⅭⅮⅯⅰⅴⅹⅼⅽⅾⅿ⒜⒝⒞⒟⒠⒡⒢⒣⒤⒥⒦⒧⒨⒩⒪⒫⒬⒭⒮⒯⒰⒱⒲⒳⒴⒵ⒶⒷⒸⒹⒺⒻⒼ"
        "ⒽⒾⒿⓀⓁⓂⓃⓄⓅⓆⓇⓈⓉⓊⓋⓌⓍⓎⓏⓐⓑⓒⓓⓔⓕⓖⓗⓘⓙⓚⓛⓜⓝⓞⓟⓠⓡⓢⓣⓤⓥⓦⓧⓨⓩⱼⱽⵯꚜꚝꜰꜱꝰꞘꞙꞟꞯꞲꞳꞴ꟱ꟲꟳꟴ"
        "ꟸꟹꬲꬵꬽꭇꭈꭎꭒꭚꭜꭝꭞꭟꭩﬠﬡﬢﬣﬤﬥﬦﬧﬨﭐﭑﭒﭓﭔﭕﭖﭗﭘﭙﭚﭛﭜﭝﭞﭟﭠﭡﭢﭣﭤﭥﭦﭧﭨﭩﭪﭫﭬﭭﭮﭯﭰﭱﭲﭳﭴﭵﭶﭷ"
        "ﭸﭹﭺﭻﭼﭽﭾﭿﮀﮁﮂﮃﮄﮅﮆﮇﮈﮉﮊﮋﮌﮍﮎﮏﮐﮑﮒﮓﮔﮕﮖﮗﮘﮙﮚﮛﮜﮝﮞﮟﮠﮡﮢﮣﮤﮥﮦﮧﮨﮩﮪﮫﮬﮭﮮﮯﮰﮱﯓﯔﯕﯖﯗﯘ"
        "ﯙﯚﯛﯜﯞﯟﯠﯡﯢﯣﯤﯥﯦﯧﯨﯩﯼﯽﯾﯿﺀﺁﺂﺃﺄﺅﺆﺇﺈﺉﺊﺋﺌﺍﺎﺏﺐﺑﺒﺓﺔﺕﺖﺗﺘﺙﺚﺛﺜﺝﺞﺟﺠﺡﺢﺣﺤﺥﺦﺧﺨﺩﺪﺫ"
        "ﺬﺭﺮﺯﺰﺱﺲﺳﺴﺵﺶﺷﺸﺹﺺﺻﺼﺽﺾﺿﻀﻁﻂﻃﻄﻅﻆﻇﻈﻉﻊﻋﻌﻍﻎﻏﻐﻑﻒﻓﻔﻕﻖﻗﻘﻙﻚﻛﻜﻝﻞﻟﻠﻡﻢﻣﻤﻥﻦﻧﻨﻩﻪﻫ"
        "ﻬﻭﻮﻯﻰﻱﻲﻳﻴ０１２３４５６７８９ＡＢＣＤＥＦＧＨＩＪＫＬＭＮＯＰＱＲＳＴＵＶＷＸＹＺａｂｃｄｅｆｇｈｉｊｋｌｍｎｏｐｑｒｓ"
        "ｔｕｖｗｘｙｚｦｧｨｩｪｫｬｭｮｯｰｱｲｳｴｵｶｷｸｹｺｻｼｽｾｿﾀﾁﾂﾃﾄﾅﾆﾇﾈﾉﾊﾋﾌﾍﾎﾏﾐﾑﾒﾓﾔﾕﾖﾗﾘﾙﾚﾛﾜﾝ𐞁"
        "𐞂𐞃𐞄𐞅𐞇𐞈𐞉𐞊𐞋𐞌𐞍𐞎𐞏𐞐𐞑𐞒𐞓𐞔𐞕𐞖𐞗𐞘𐞙𐞚𐞛𐞜𐞝𐞞𐞟𐞠𐞡𐞢𐞣𐞤𐞥𐞦𐞧𐞨𐞩𐞪𐞫𐞬𐞭𐞮𐞯𐞰𐞲𐞳𐞴𐞵𐞶𐞷𐞸𐞹𐞺𜳖𜳗𜳘𜳙𜳚𜳛𜳜𜳝𜳞"
        "𜳟𜳠𜳡𜳢𜳣𜳤𜳥𜳦𜳧𜳨𜳩𜳪𜳫𜳬𜳭𜳮𜳯𜳰𜳱𜳲𜳳𜳴𜳵𜳶𜳷𜳸𜳹𝐀𝐁𝐂𝐃𝐄𝐅𝐆𝐇𝐈𝐉𝐊𝐋𝐌𝐍𝐎𝐏𝐐𝐑𝐒𝐓𝐔𝐕𝐖𝐗𝐘𝐙𝐚𝐛𝐜𝐝𝐞𝐟𝐠𝐡𝐢𝐣𝐤"
        "𝐥𝐦𝐧𝐨𝐩𝐪𝐫𝐬𝐭𝐮𝐯𝐰𝐱𝐲𝐳𝐴𝐵𝐶𝐷𝐸𝐹𝐺𝐻𝐼𝐽𝐾𝐿𝑀𝑁𝑂𝑃𝑄𝑅𝑆𝑇𝑈𝑉𝑊𝑋𝑌𝑍𝑎𝑏𝑐𝑑𝑒𝑓𝑔𝑖𝑗𝑘𝑙𝑚𝑛𝑜𝑝𝑞𝑟𝑠𝑡𝑢𝑣𝑤𝑥"
        "𝑦𝑧𝑨𝑩𝑪𝑫𝑬𝑭𝑮𝑯𝑰𝑱𝑲𝑳𝑴𝑵𝑶𝑷𝑸𝑹𝑺𝑻𝑼𝑽𝑾𝑿𝒀𝒁𝒂𝒃𝒄𝒅𝒆𝒇𝒈𝒉𝒊𝒋𝒌𝒍𝒎𝒏𝒐𝒑𝒒𝒓𝒔𝒕𝒖𝒗𝒘𝒙𝒚𝒛𝒜𝒞𝒟𝒢𝒥𝒦𝒩𝒪𝒫𝒬"
        "𝒮𝒯𝒰𝒱𝒲𝒳𝒴𝒵𝒶𝒷𝒸𝒹𝒻𝒽𝒾𝒿𝓀𝓁𝓂𝓃𝓅𝓆𝓇𝓈𝓉𝓊𝓋𝓌𝓍𝓎𝓏𝓐𝓑𝓒𝓓𝓔𝓕𝓖𝓗𝓘𝓙𝓚𝓛𝓜𝓝𝓞𝓟𝓠𝓡𝓢𝓣𝓤𝓥𝓦𝓧𝓨𝓩𝓪𝓫𝓬𝓭𝓮𝓯𝓰"
        "𝓱𝓲𝓳𝓴𝓵𝓶𝓷𝓸𝓹𝓺𝓻𝓼𝓽𝓾𝓿𝔀𝔁𝔂𝔃𝔄𝔅𝔇𝔈𝔉𝔊𝔍𝔎𝔏𝔐𝔑𝔒𝔓𝔔𝔖𝔗𝔘𝔙𝔚𝔛𝔜𝔞𝔟𝔠𝔡𝔢𝔣𝔤𝔥𝔦𝔧𝔨𝔩𝔪𝔫𝔬𝔭𝔮𝔯𝔰𝔱𝔲𝔳𝔴𝔵"
        "𝔶𝔷𝔸𝔹𝔻𝔼𝔽𝔾𝕀𝕁𝕂𝕃𝕄𝕆𝕊𝕋𝕌𝕍𝕎𝕏𝕐𝕒𝕓𝕔𝕕𝕖𝕗𝕘𝕙𝕚𝕛𝕜𝕝𝕞𝕟𝕠𝕡𝕢𝕣𝕤𝕥𝕦𝕧𝕨𝕩𝕪𝕫𝕬𝕭𝕮𝕯𝕰𝕱𝕲𝕳𝕴𝕵𝕶𝕷𝕸𝕹𝕺𝕻𝕼"
        "𝕽𝕾𝕿𝖀𝖁𝖂𝖃𝖄𝖅𝖆𝖇𝖈𝖉𝖊𝖋𝖌𝖍𝖎𝖏𝖐𝖑𝖒𝖓𝖔𝖕𝖖𝖗𝖘𝖙𝖚𝖛𝖜𝖝𝖞𝖟𝖠𝖡𝖢𝖣𝖤𝖥𝖦𝖧𝖨𝖩𝖪𝖫𝖬𝖭𝖮𝖯𝖰𝖱𝖲𝖳𝖴𝖵𝖶𝖷𝖸𝖹𝖺𝖻𝖼"
        "𝖽𝖾𝖿𝗀𝗁𝗂𝗃𝗄𝗅𝗆𝗇𝗈𝗉𝗊𝗋𝗌𝗍𝗎𝗏𝗐𝗑𝗒𝗓𝗔𝗕𝗖𝗗𝗘𝗙𝗚𝗛𝗜𝗝𝗞𝗟𝗠𝗡𝗢𝗣𝗤𝗥𝗦𝗧𝗨𝗩𝗪𝗫𝗬𝗭𝗮𝗯𝗰𝗱𝗲𝗳𝗴𝗵𝗶𝗷𝗸𝗹𝗺𝗻𝗼"
        "𝗽𝗾𝗿𝘀𝘁𝘂𝘃𝘄𝘅𝘆𝘇𝘈𝘉𝘊𝘋𝘌𝘍𝘎𝘏𝘐𝘑𝘒𝘓𝘔𝘕𝘖𝘗𝘘𝘙𝘚𝘛𝘜𝘝𝘞𝘟𝘠𝘡𝘢𝘣𝘤𝘥𝘦𝘧𝘨𝘩𝘪𝘫𝘬𝘭𝘮𝘯𝘰𝘱𝘲𝘳𝘴𝘵𝘶𝘷𝘸𝘹𝘺𝘻𝘼"
        "𝘽𝘾𝘿𝙀𝙁𝙂𝙃𝙄𝙅𝙆𝙇𝙈𝙉𝙊𝙋𝙌𝙍𝙎𝙏𝙐𝙑𝙒𝙓𝙔𝙕𝙖𝙗𝙘𝙙𝙚𝙛𝙜𝙝𝙞𝙟𝙠𝙡𝙢𝙣𝙤𝙥𝙦𝙧𝙨𝙩𝙪𝙫𝙬𝙭𝙮𝙯𝙰𝙱𝙲𝙳𝙴𝙵𝙶𝙷𝙸𝙹𝙺𝙻𝙼"
        "𝙽𝙾𝙿𝚀𝚁𝚂𝚃𝚄𝚅𝚆𝚇𝚈𝚉𝚊𝚋𝚌𝚍𝚎𝚏𝚐𝚑𝚒𝚓𝚔𝚕𝚖𝚗𝚘𝚙𝚚𝚛𝚜𝚝𝚞𝚟𝚠𝚡𝚢𝚣𝚤𝚥𝚨𝚩𝚪𝚫𝚬𝚭𝚮𝚯𝚰𝚱𝚲𝚳𝚴𝚵𝚶𝚷𝚸𝚹𝚺𝚻𝚼𝚽𝚾"
        "𝚿𝛀𝛂𝛃𝛄𝛅𝛆𝛇𝛈𝛉𝛊𝛋𝛌𝛍𝛎𝛏𝛐𝛑𝛒𝛓𝛔𝛕𝛖𝛗𝛘𝛙𝛚𝛜𝛝𝛞𝛟𝛠𝛡𝛢𝛣𝛤𝛥𝛦𝛧𝛨𝛩𝛪𝛫𝛬𝛭𝛮𝛯𝛰𝛱𝛲𝛳𝛴𝛵𝛶𝛷𝛸𝛹𝛺𝛼𝛽𝛾𝛿𝜀𝜁"
        "𝜂𝜃𝜄𝜅𝜆𝜇𝜈𝜉𝜊𝜋𝜌𝜍𝜎𝜏𝜐𝜑𝜒𝜓𝜔𝜖𝜗𝜘𝜙𝜚𝜛𝜜𝜝𝜞𝜟𝜠𝜡𝜢𝜣𝜤𝜥𝜦𝜧𝜨𝜩𝜪𝜫𝜬𝜭𝜮𝜯𝜰𝜱𝜲𝜳𝜴𝜶𝜷𝜸𝜹𝜺𝜻𝜼𝜽𝜾𝜿𝝀𝝁𝝂𝝃"
        "𝝄𝝅𝝆𝝇𝝈𝝉𝝊𝝋𝝌𝝍𝝎𝝐𝝑𝝒𝝓𝝔𝝕𝝖𝝗𝝘𝝙𝝚𝝛𝝜𝝝𝝞𝝟𝝠𝝡𝝢𝝣𝝤𝝥𝝦𝝧𝝨𝝩𝝪𝝫𝝬𝝭𝝮𝝰𝝱𝝲𝝳𝝴𝝵𝝶𝝷𝝸𝝹𝝺𝝻𝝼𝝽𝝾𝝿𝞀𝞁𝞂𝞃𝞄𝞅"
        "𝞆𝞇𝞈𝞊𝞋𝞌𝞍𝞎𝞏𝞐𝞑𝞒𝞓𝞔𝞕𝞖𝞗𝞘𝞙𝞚𝞛𝞜𝞝𝞞𝞟𝞠𝞡𝞢𝞣𝞤𝞥𝞦𝞧𝞨𝞪𝞫𝞬𝞭𝞮𝞯𝞰𝞱𝞲𝞳𝞴𝞵𝞶𝞷𝞸𝞹𝞺𝞻𝞼𝞽𝞾𝞿𝟀𝟁𝟂𝟄𝟅𝟆𝟇𝟈"
        "𝟉𝟊𝟋𝟎𝟏𝟐𝟑𝟒𝟓𝟔𝟕𝟖𝟗𝟘𝟙𝟚𝟛𝟜𝟝𝟞𝟟𝟠𝟡𝟢𝟣𝟤𝟥𝟦𝟧𝟨𝟩𝟪𝟫𝟬𝟭𝟮𝟯𝟰𝟱𝟲𝟳𝟴𝟵𝟶𝟷𝟸𝟹𝟺𝟻𝟼𝟽𝟾𝟿𞀰𞀱𞀲𞀳𞀴𞀵𞀶𞀷𞀸𞀹𞀺"
        "𞀻𞀼𞀽𞀾𞀿𞁀𞁁𞁂𞁃𞁄𞁅𞁆𞁇𞁈𞁉𞁊𞁋𞁌𞁍𞁎𞁏𞁐𞁑𞁒𞁓𞁔𞁕𞁖𞁗𞁘𞁙𞁚𞁛𞁜𞁝𞁞𞁟𞁠𞁡𞁢𞁣𞁤𞁥𞁦𞁧𞁨𞁩𞁪𞁫𞁬𞁭𞸀𞸁𞸂𞸃𞸅𞸆𞸇𞸈𞸉𞸊𞸋𞸌𞸍"
        "𞸎𞸏𞸐𞸑𞸒𞸓𞸔𞸕𞸖𞸗𞸘𞸙𞸚𞸛𞸜𞸝𞸞𞸟𞸡𞸢𞸤𞸧𞸩𞸪𞸫𞸬𞸭𞸮𞸯𞸰𞸱𞸲𞸴𞸵𞸶𞸷𞸹𞸻𞹂𞹇𞹉𞹋𞹍𞹎𞹏𞹑𞹒𞹔𞹗𞹙𞹛𞹝𞹟𞹡𞹢𞹤𞹧𞹨𞹩𞹪𞹬𞹭𞹮𞹯"
        "𞹰𞹱𞹲𞹴𞹵𞹶𞹷𞹹𞹺𞹻𞹼𞹾𞺀𞺁𞺂𞺃𞺄𞺅𞺆𞺇𞺈𞺉𞺋𞺌𞺍𞺎𞺏𞺐𞺑𞺒𞺓𞺔𞺕𞺖𞺗𞺘𞺙𞺚𞺛𞺡𞺢𞺣𞺥𞺦𞺧𞺨𞺩𞺫𞺬𞺭𞺮𞺯𞺰𞺱𞺲𞺳𞺴𞺵𞺶𞺷𞺸𞺹𞺺𞺻"
        "🄐🄑🄒🄓🄔🄕🄖🄗🄘🄙🄚🄛🄜🄝🄞🄟🄠🄡🄢🄣🄤🄥🄦🄧🄨🄩🄫🄬🄰🄱🄲🄳🄴🄵🄶🄷🄸🄹🄺🄻🄼🄽🄾🄿🅀🅁🅂🅃🅄🅅🅆🅇🅈🅉🅐🅑🅒🅓🅔🅕🅖🅗🅘🅙"
        "🅚🅛🅜🅝🅞🅟🅠🅡🅢🅣🅤🅥🅦🅧🅨🅩🅰🅱🅲🅳🅴🅵🅶🅷🅸🅹🅺🅻🅼🅽🅾🅿🆀🆁🆂🆃🆄🆅🆆🆇🆈🆉🆊🯰🯱🯲🯳🯴🯵🯶🯷🯸🯹"
    ),
    (
        "aosbgflRsplaggyiiwnruybhlhɦjrɹɻʁwyɣlsxʕნacdejkmooptuvwzAÆBDEƎGHI"
        "JKLMNOȢPRTUWaɐɑᴂbdeəɛɜgkmŋoɔᴖᴗptuᴝɯvᴥβγδφχiruvβγρφχнgyɒcɕðɜfɟɡɥɨ"
        "ɩɪᵻʝɭᶅʟɱɰɲɳɴɵɸʂʃƫʉʊᴜʋʌzʐʑʒθfyinaeoxəhklmnpstCgHHHhħIILlNPQRRRZZK"
        "BCeEFMoiπγΓΠDdeijIVXLCDMivxlcdmabcdefghijklmnopqrstuvwxyzABCDEFG"
        "HIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyzjVⵡъьfsꝯFfuqJXBSCFQ"
        "Ħœeforruuyꜧꬷɫꭒʍעאדהכלםרתٱٱٻٻٻٻپپپپڀڀڀڀٺٺٺٺٿٿٿٿٹٹٹٹڤڤڤڤڦڦڦڦڄڄڄڄڃڃ"
        "ڃڃچچچچڇڇڇڇڍڍڌڌڎڎڈڈژژڑڑککککگگگگڳڳڳڳڱڱڱڱںںڻڻڻڻۀۀہہہہھھھھےےۓۓڭڭڭڭۇۇ"
        "ۆۆۈۈۋۋۅۅۉۉېېېېىىییییءآآأأؤؤإإئئئئااببببةةتتتتثثثثججججححححخخخخددذ"
        "ذررززسسسسششششصصصصضضضضططططظظظظععععغغغغففففققققككككللللممممننننههه"
        "هووىىيييي0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrs"
        "tuvwxyzヲァィゥェォャュョッーアイウエオカキクケコサシスセソタチツテトナニヌネノハヒフヘホマミムメモヤユヨラリルレロワンː"
        "ˑæʙɓʣꭦʥʤɖɗᶑɘɞʩɤɢɠʛħʜɧʄʪʫɬ𝼄ꞎɮ𝼅ʎ𝼆øɶɷqɺ𝼈ɽɾʀʨʦꭧʧʈⱱʏʡʢʘǀǁǂ𝼊𝼞ABCDEFGHI"
        "JKLMNOPQRSTUVWXYZ0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijk"
        "lmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZabcdefgijklmnopqrstuvwx"
        "yzABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyzACDGJKNOPQ"
        "STUVWXYZabcdfhijklmnpqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZabcdefg"
        "hijklmnopqrstuvwxyzABDEFGJKLMNOPQSTUVWXYabcdefghijklmnopqrstuvwx"
        "yzABDEFGIJKLMOSTUVWXYabcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQ"
        "RSTUVWXYZabcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZabc"
        "defghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmno"
        "pqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyzA"
        "BCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyzABCDEFGHIJKLM"
        "NOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyzıȷΑΒΓΔΕΖΗΘΙΚΛΜΝΞΟΠΡΘΣΤΥΦΧ"
        "ΨΩαβγδεζηθικλμνξοπρςστυφχψωεθκφρπΑΒΓΔΕΖΗΘΙΚΛΜΝΞΟΠΡΘΣΤΥΦΧΨΩαβγδεζ"
        "ηθικλμνξοπρςστυφχψωεθκφρπΑΒΓΔΕΖΗΘΙΚΛΜΝΞΟΠΡΘΣΤΥΦΧΨΩαβγδεζηθικλμνξ"
        "οπρςστυφχψωεθκφρπΑΒΓΔΕΖΗΘΙΚΛΜΝΞΟΠΡΘΣΤΥΦΧΨΩαβγδεζηθικλμνξοπρςστυφ"
        "χψωεθκφρπΑΒΓΔΕΖΗΘΙΚΛΜΝΞΟΠΡΘΣΤΥΦΧΨΩαβγδεζηθικλμνξοπρςστυφχψωεθκφρ"
        "πϜϝ01234567890123456789012345678901234567890123456789абвгдежзикл"
        "мопрстуфхцчшыэюꚉәіјөүӏабвгдежзиклопсуфхцчшъыґіѕџҫꙑұابجدوزحطيكلمن"
        "سعفصقرشتثخذضظغٮںڡٯبجهحيكلمنسعفصقشتثخضغجحيلنسعصقشخضغںٯبجهحطيكمنسع"
        "فصقشتثخضظغٮڡابجدهوزحطيلمنسعفصقرشتثخذضظغبجدوزحطيلمنسعفصقرشتثخذضظغ"
        "ABCDEFGHIJKLMNOPQRSTUVWXYZCRABCDEFGHIJKLMNOPQRSTUVWXYZABCDEFGHIJ"
        "KLMNOPQRSTUVWXYZABCDEFGHIJKLMNOPQRSTUVWXYZP0123456789"
    ),
)
STYLED: Mapping[str, str] = {
    **dict(zip(*_SINGLE, strict=True)),
    "Ĳ": "IJ",
    "ĳ": "ij",
    "Ǉ": "LJ",
    "ǈ": "Lj",
    "ǉ": "lj",
    "Ǌ": "NJ",
    "ǋ": "Nj",
    "ǌ": "nj",
    "Ǳ": "DZ",
    "ǲ": "Dz",
    "ǳ": "dz",
    "₨": "Rs",
    "№": "No",
    "℠": "SM",
    "℡": "TEL",
    "™": "TM",
    "℻": "FAX",
    "Ⅱ": "II",
    "Ⅲ": "III",
    "Ⅳ": "IV",
    "Ⅵ": "VI",
    "Ⅶ": "VII",
    "Ⅷ": "VIII",
    "Ⅸ": "IX",
    "Ⅺ": "XI",
    "Ⅻ": "XII",
    "ⅱ": "ii",
    "ⅲ": "iii",
    "ⅳ": "iv",
    "ⅵ": "vi",
    "ⅶ": "vii",
    "ⅷ": "viii",
    "ⅸ": "ix",
    "ⅺ": "xi",
    "ⅻ": "xii",
    "㉐": "PTE",
    "㋌": "Hg",
    "㋍": "erg",
    "㋎": "eV",
    "㋏": "LTD",
    "㍱": "hPa",
    "㍲": "da",
    "㍳": "AU",
    "㍴": "bar",
    "㍵": "oV",
    "㍶": "pc",
    "㍷": "dm",
    "㍺": "IU",
    "㎀": "pA",
    "㎁": "nA",
    "㎃": "mA",
    "㎄": "kA",
    "㎅": "KB",
    "㎆": "MB",
    "㎇": "GB",
    "㎈": "cal",
    "㎉": "kcal",
    "㎊": "pF",
    "㎋": "nF",
    "㎎": "mg",
    "㎏": "kg",
    "㎐": "Hz",
    "㎑": "kHz",
    "㎒": "MHz",
    "㎓": "GHz",
    "㎔": "THz",
    "㎖": "ml",
    "㎗": "dl",
    "㎘": "kl",
    "㎙": "fm",
    "㎚": "nm",
    "㎜": "mm",
    "㎝": "cm",
    "㎞": "km",
    "㎩": "Pa",
    "㎪": "kPa",
    "㎫": "MPa",
    "㎬": "GPa",
    "㎭": "rad",
    "㎰": "ps",
    "㎱": "ns",
    "㎳": "ms",
    "㎴": "pV",
    "㎵": "nV",
    "㎷": "mV",
    "㎸": "kV",
    "㎹": "MV",
    "㎺": "pW",
    "㎻": "nW",
    "㎽": "mW",
    "㎾": "kW",
    "㎿": "MW",
    "㏃": "Bq",
    "㏄": "cc",
    "㏅": "cd",
    "㏈": "dB",
    "㏉": "Gy",
    "㏊": "ha",
    "㏋": "HP",
    "㏌": "in",
    "㏍": "KK",
    "㏎": "KM",
    "㏏": "kt",
    "㏐": "lm",
    "㏑": "ln",
    "㏒": "log",
    "㏓": "lx",
    "㏔": "mb",
    "㏕": "mil",
    "㏖": "mol",
    "㏗": "PH",
    "㏙": "PPM",
    "㏚": "PR",
    "㏛": "sr",
    "㏜": "Sv",
    "㏝": "Wb",
    "㏿": "gal",
    "ﬀ": "ff",
    "ﬁ": "fi",
    "ﬂ": "fl",
    "ﬃ": "ffi",
    "ﬄ": "ffl",
    "ﬅ": "st",
    "ﬆ": "st",
    "🄭": "CD",
    "🄮": "WZ",
    "🅊": "HV",
    "🅋": "MV",
    "🅌": "SD",
    "🅍": "SS",
    "🅎": "PPV",
    "🅏": "WC",
    "🅪": "MC",
    "🅫": "MD",
    "🅬": "MR",
    "🆐": "DJ",
}
"""Characters that are other styles of letters or digits, with the plain ones."""

LOOK_ALIKES_BY_SCRIPT: Mapping[str, tuple[str, str]] = {
    "Ahom": ("𑜆𑜊𑜎𑜏", "vwww"),
    "Arabic": ("اه١٥٧ھہە۱۵۷", "loloVoooloV"),
    "Armenian": ("ՍՏՕագզհոռսցւքօ", "USOwqqhnnugifo"),
    "Bamum": ("ꛟ", "V"),
    "Bengali": ("০", "o"),
    "Beria_Erfe": ("𖺪𖺶", "lb"),
    "Canadian_Aboriginal": ("ᐯᑌᑭᑯᑲᒍᒪᕁᕼᕽᖇᖯᖴᗅᗞᗪᗰᗷ᙭᙮", "VUPdbJLxHxRbFADDMBXx"),
    "Carian": ("𐊠𐊡𐊢𐊥𐊫𐊰𐊱𐊲𐊴𐋏", "ABCFOMTYXH"),
    "Cherokee": ("ᎠᎡᎢᎥᎩᎪᎫᎬᎳᎷᎻᎽᏀᏂᏃᏏᏒᏔᏕᏙᏚᏞᏟᏢᏦᏧᏳᏴꭵꮁꮃꮓꮩꮪꮯ", "DRTiYAJEWMHYGhZbRWSVSLCPKdGBirwzvsc"),
    "Common": ("×˛℮∣∨∪⊤⋁⋃⋿⍳⍴⍺⏽╳⟙⤫⤬⨯￨𐋵🝌🝨", "xielvUTvUEipalXTxxxlZCT"),
    "Coptic": ("ϭⲂⲅⲎⲒⲓⲔⲘⲚⲞⲟⲢⲣⲤⲥⲦⲨⲩⲬⲽⳎⳏⳐ", "oBrHIiKMNOoPpCcTYyXwPpL"),
    "Cyrillic": ("ЅІЈАВЕКМНОРСТУХЬагеорсухшѕіјѡѴѵҮүһҽӀӏԁԌԛԜԝꙇ", "SIJABEKMHOPCTYXbareopcyxwsijwVvYyhelldGqWwi"),
    "Deseret": ("𐐄𐐕𐐛𐐠𐐬𐐽𐑈", "OCLSocs"),
    "Devanagari": ("०", "o"),
    "Elbasan": ("𐔓𐔖𐔘𐔜𐔝𐔥𐔦𐔧", "NOKCVFLX"),
    "Ethiopic": ("ሀዐ", "UO"),
    "Georgian": ("ყჿ", "yo"),
    "Greek": ("ͿΑΒΕΖΗΙΚΜΝΟΡΤΥΧαγικνορσυχϒϜϱϲϳϸϹϺᴦ𝈍𝈓𝈖𝈪", "JABEZHIKMNOPTYXayikvopouxYFpcjpCMrVFRL"),
    "Gujarati": ("૦", "o"),
    "Gurmukhi": ("੦", "o"),
    "Han": ("〇", "O"),
    "Hebrew": ("׀וטןס", "llvlo"),
    "Kannada": ("ಂ೦", "oO"),
    "Khmer": ("០", "o"),
    "Lao": ("໐", "o"),
    "Lisu": ("ꓐꓑꓒꓓꓔꓖꓗꓙꓚꓜꓝꓟꓠꓡꓢꓣꓦꓧꓪꓫꓬꓮꓰꓲꓳꓴ", "BPdDTGKJCZFMNLSRVHWXYAElOU"),
    "Lycian": ("𐊂𐊆𐊇𐊊𐊐𐊒𐊕𐊖𐊗", "BEFlXOPST"),
    "Malayalam": ("ംടഠ൦", "osoo"),
    "Mende_Kikakui": ("𞣇", "l"),
    "Miao": ("𖼈𖼊𖼖𖼨𖼵𖼺𖽀𖽂𖽃", "VTLlRSAUY"),
    "Myanmar": ("ငဝ၀ၚ", "cooc"),
    "Nko": ("߀ߊ", "Ol"),
    "Old_Italic": ("𐌁𐌂𐌉𐌑𐌕𐌗𐌠𐌢", "BClMTXlX"),
    "Oriya": ("ଠ୦", "Oo"),
    "Osage": ("𐒴𐓂𐓎𐓪𐓶", "ROUou"),
    "Runic": ("ᚷᛁᛕᛖ", "XlKM"),
    "Sinhala": ("ං", "o"),
    "Tamil": ("௦", "o"),
    "Telugu": ("ం౦", "oo"),
    "Thai": ("๐", "o"),
    "Tifinagh": ("ⴸⴹⵏⵔⵕⵝ", "VElOQX"),
    "Tirhuta": ("𑓐", "o"),
    "Tolong_Siki": ("𑷚𑷠𑷡", "lOl"),
    "Warang_Citi": ("𑢠𑢢𑢣𑢤𑢦𑢩𑢮𑢲𑢵𑢸𑢼𑣀𑣁𑣂𑣃𑣄𑣈𑣗𑣘𑣜𑣠𑣥𑣦𑣩𑣬𑣯𑣲", "VFLYEZELOUTvsFizoouyOZWCXWC"),
}
"""Characters of other scripts that look like a Latin letter, and these letters."""

SCRIPTS: Mapping[str, tuple[range, ...]] = {
    "Latin": (
        range(0x41, 0x5b), range(0x61, 0x7b), range(0xaa, 0xab), range(0xba, 0xbb),
        range(0xc0, 0xd7), range(0xd8, 0xf7), range(0xf8, 0x2b9), range(0x2e0, 0x2e5),
        range(0x1d00, 0x1d26), range(0x1d2c, 0x1d5d), range(0x1d62, 0x1d66), range(0x1d6b, 0x1d78),
        range(0x1d79, 0x1dbf), range(0x1e00, 0x1f00), range(0x2071, 0x2072), range(0x207f, 0x2080),
        range(0x2090, 0x209d), range(0x212a, 0x212c), range(0x2132, 0x2133), range(0x214e, 0x214f),
        range(0x2183, 0x2185), range(0x2c60, 0x2c80), range(0xa722, 0xa788), range(0xa78b, 0xa7dd),
        range(0xa7f1, 0xa800), range(0xab30, 0xab5b), range(0xab5c, 0xab65), range(0xab66, 0xab6a),
        range(0xfb00, 0xfb07), range(0xff21, 0xff3b), range(0xff41, 0xff5b), range(0x10780, 0x10786),
        range(0x10787, 0x107b1), range(0x107b2, 0x107bb), range(0x1df00, 0x1df1f), range(0x1df25, 0x1df2b),
    ),
    "Ahom": (
        range(0x11700, 0x1171b), range(0x11740, 0x11747),
    ),
    "Arabic": (
        range(0x620, 0x640), range(0x641, 0x64b), range(0x66e, 0x670), range(0x671, 0x6d4),
        range(0x6d5, 0x6d6), range(0x6e5, 0x6e7), range(0x6ee, 0x6f0), range(0x6fa, 0x6fd),
        range(0x6ff, 0x700), range(0x750, 0x780), range(0x870, 0x888), range(0x889, 0x890),
        range(0x8a0, 0x8ca), range(0xfb50, 0xfbb2), range(0xfbd3, 0xfd3e), range(0xfd50, 0xfd90),
        range(0xfd92, 0xfdc8), range(0xfdf0, 0xfdfc), range(0xfe70, 0xfe75), range(0xfe76, 0xfefd),
        range(0x10ec2, 0x10ec8), range(0x1ee00, 0x1ee04), range(0x1ee05, 0x1ee20), range(0x1ee21, 0x1ee23),
        range(0x1ee24, 0x1ee25), range(0x1ee27, 0x1ee28), range(0x1ee29, 0x1ee33), range(0x1ee34, 0x1ee38),
        range(0x1ee39, 0x1ee3a), range(0x1ee3b, 0x1ee3c), range(0x1ee42, 0x1ee43), range(0x1ee47, 0x1ee48),
        range(0x1ee49, 0x1ee4a), range(0x1ee4b, 0x1ee4c), range(0x1ee4d, 0x1ee50), range(0x1ee51, 0x1ee53),
        range(0x1ee54, 0x1ee55), range(0x1ee57, 0x1ee58), range(0x1ee59, 0x1ee5a), range(0x1ee5b, 0x1ee5c),
        range(0x1ee5d, 0x1ee5e), range(0x1ee5f, 0x1ee60), range(0x1ee61, 0x1ee63), range(0x1ee64, 0x1ee65),
        range(0x1ee67, 0x1ee6b), range(0x1ee6c, 0x1ee73), range(0x1ee74, 0x1ee78), range(0x1ee79, 0x1ee7d),
        range(0x1ee7e, 0x1ee7f), range(0x1ee80, 0x1ee8a), range(0x1ee8b, 0x1ee9c), range(0x1eea1, 0x1eea4),
        range(0x1eea5, 0x1eeaa), range(0x1eeab, 0x1eebc),
    ),
    "Armenian": (
        range(0x531, 0x557), range(0x559, 0x55a), range(0x560, 0x589), range(0xfb13, 0xfb18),
    ),
    "Bamum": (
        range(0xa6a0, 0xa6e6), range(0x16800, 0x16a39),
    ),
    "Bengali": (
        range(0x980, 0x981), range(0x985, 0x98d), range(0x98f, 0x991), range(0x993, 0x9a9),
        range(0x9aa, 0x9b1), range(0x9b2, 0x9b3), range(0x9b6, 0x9ba), range(0x9bd, 0x9be),
        range(0x9ce, 0x9cf), range(0x9dc, 0x9de), range(0x9df, 0x9e2), range(0x9f0, 0x9f2),
        range(0x9fc, 0x9fd),
    ),
    "Beria_Erfe": (
        range(0x16ea0, 0x16eb9), range(0x16ebb, 0x16ed4),
    ),
    "Canadian_Aboriginal": (
        range(0x1401, 0x166d), range(0x166f, 0x1680), range(0x18b0, 0x18f6), range(0x11ab0, 0x11ac0),
    ),
    "Carian": (
        range(0x102a0, 0x102d1),
    ),
    "Cherokee": (
        range(0x13a0, 0x13f6), range(0x13f8, 0x13fe), range(0xab70, 0xabc0),
    ),
    "Coptic": (
        range(0x3e2, 0x3f0), range(0x2c80, 0x2ce5), range(0x2ceb, 0x2cef), range(0x2cf2, 0x2cf4),
    ),
    "Cyrillic": (
        range(0x400, 0x482), range(0x48a, 0x530), range(0x1c80, 0x1c8b), range(0x1d2b, 0x1d2c),
        range(0x1d78, 0x1d79), range(0xa640, 0xa66f), range(0xa67f, 0xa69e), range(0x1e030, 0x1e06e),
    ),
    "Deseret": (
        range(0x10400, 0x10450),
    ),
    "Devanagari": (
        range(0x904, 0x93a), range(0x93d, 0x93e), range(0x950, 0x951), range(0x958, 0x962),
        range(0x971, 0x980), range(0xa8f2, 0xa8f8), range(0xa8fb, 0xa8fc), range(0xa8fd, 0xa8ff),
    ),
    "Elbasan": (
        range(0x10500, 0x10528),
    ),
    "Ethiopic": (
        range(0x1200, 0x1249), range(0x124a, 0x124e), range(0x1250, 0x1257), range(0x1258, 0x1259),
        range(0x125a, 0x125e), range(0x1260, 0x1289), range(0x128a, 0x128e), range(0x1290, 0x12b1),
        range(0x12b2, 0x12b6), range(0x12b8, 0x12bf), range(0x12c0, 0x12c1), range(0x12c2, 0x12c6),
        range(0x12c8, 0x12d7), range(0x12d8, 0x1311), range(0x1312, 0x1316), range(0x1318, 0x135b),
        range(0x1380, 0x1390), range(0x2d80, 0x2d97), range(0x2da0, 0x2da7), range(0x2da8, 0x2daf),
        range(0x2db0, 0x2db7), range(0x2db8, 0x2dbf), range(0x2dc0, 0x2dc7), range(0x2dc8, 0x2dcf),
        range(0x2dd0, 0x2dd7), range(0x2dd8, 0x2ddf), range(0xab01, 0xab07), range(0xab09, 0xab0f),
        range(0xab11, 0xab17), range(0xab20, 0xab27), range(0xab28, 0xab2f), range(0x1e7e0, 0x1e7e7),
        range(0x1e7e8, 0x1e7ec), range(0x1e7ed, 0x1e7ef), range(0x1e7f0, 0x1e7ff),
    ),
    "Georgian": (
        range(0x10a0, 0x10c6), range(0x10c7, 0x10c8), range(0x10cd, 0x10ce), range(0x10d0, 0x10fb),
        range(0x10fc, 0x1100), range(0x1c90, 0x1cbb), range(0x1cbd, 0x1cc0), range(0x2d00, 0x2d26),
        range(0x2d27, 0x2d28), range(0x2d2d, 0x2d2e),
    ),
    "Greek": (
        range(0x370, 0x374), range(0x376, 0x378), range(0x37a, 0x37e), range(0x37f, 0x380),
        range(0x386, 0x387), range(0x388, 0x38b), range(0x38c, 0x38d), range(0x38e, 0x3a2),
        range(0x3a3, 0x3e2), range(0x3f0, 0x3f6), range(0x3f7, 0x400), range(0x1d26, 0x1d2b),
        range(0x1d5d, 0x1d62), range(0x1d66, 0x1d6b), range(0x1dbf, 0x1dc0), range(0x1f00, 0x1f16),
        range(0x1f18, 0x1f1e), range(0x1f20, 0x1f46), range(0x1f48, 0x1f4e), range(0x1f50, 0x1f58),
        range(0x1f59, 0x1f5a), range(0x1f5b, 0x1f5c), range(0x1f5d, 0x1f5e), range(0x1f5f, 0x1f7e),
        range(0x1f80, 0x1fb5), range(0x1fb6, 0x1fbd), range(0x1fbe, 0x1fbf), range(0x1fc2, 0x1fc5),
        range(0x1fc6, 0x1fcd), range(0x1fd0, 0x1fd4), range(0x1fd6, 0x1fdc), range(0x1fe0, 0x1fed),
        range(0x1ff2, 0x1ff5), range(0x1ff6, 0x1ffd), range(0x2126, 0x2127), range(0xab65, 0xab66),
    ),
    "Gujarati": (
        range(0xa85, 0xa8e), range(0xa8f, 0xa92), range(0xa93, 0xaa9), range(0xaaa, 0xab1),
        range(0xab2, 0xab4), range(0xab5, 0xaba), range(0xabd, 0xabe), range(0xad0, 0xad1),
        range(0xae0, 0xae2), range(0xaf9, 0xafa),
    ),
    "Gurmukhi": (
        range(0xa05, 0xa0b), range(0xa0f, 0xa11), range(0xa13, 0xa29), range(0xa2a, 0xa31),
        range(0xa32, 0xa34), range(0xa35, 0xa37), range(0xa38, 0xa3a), range(0xa59, 0xa5d),
        range(0xa5e, 0xa5f), range(0xa72, 0xa75),
    ),
    "Hebrew": (
        range(0x5d0, 0x5eb), range(0x5ef, 0x5f3), range(0xfb1d, 0xfb1e), range(0xfb1f, 0xfb29),
        range(0xfb2a, 0xfb37), range(0xfb38, 0xfb3d), range(0xfb3e, 0xfb3f), range(0xfb40, 0xfb42),
        range(0xfb43, 0xfb45), range(0xfb46, 0xfb50),
    ),
    "Kannada": (
        range(0xc80, 0xc81), range(0xc85, 0xc8d), range(0xc8e, 0xc91), range(0xc92, 0xca9),
        range(0xcaa, 0xcb4), range(0xcb5, 0xcba), range(0xcbd, 0xcbe), range(0xcdc, 0xcdf),
        range(0xce0, 0xce2), range(0xcf1, 0xcf3),
    ),
    "Lisu": (
        range(0xa4d0, 0xa4fe), range(0x11fb0, 0x11fb1),
    ),
    "Lycian": (
        range(0x10280, 0x1029d),
    ),
    "Malayalam": (
        range(0xd04, 0xd0d), range(0xd0e, 0xd11), range(0xd12, 0xd3b), range(0xd3d, 0xd3e),
        range(0xd4e, 0xd4f), range(0xd54, 0xd57), range(0xd5f, 0xd62), range(0xd7a, 0xd80),
    ),
    "Mende_Kikakui": (
        range(0x1e800, 0x1e8c5),
    ),
    "Miao": (
        range(0x16f00, 0x16f4b), range(0x16f50, 0x16f51), range(0x16f93, 0x16fa0),
    ),
    "Nko": (
        range(0x7ca, 0x7eb), range(0x7f4, 0x7f6), range(0x7fa, 0x7fb),
    ),
    "Old_Italic": (
        range(0x10300, 0x10320), range(0x1032d, 0x10330),
    ),
    "Oriya": (
        range(0xb05, 0xb0d), range(0xb0f, 0xb11), range(0xb13, 0xb29), range(0xb2a, 0xb31),
        range(0xb32, 0xb34), range(0xb35, 0xb3a), range(0xb3d, 0xb3e), range(0xb5c, 0xb5e),
        range(0xb5f, 0xb62), range(0xb71, 0xb72),
    ),
    "Osage": (
        range(0x104b0, 0x104d4), range(0x104d8, 0x104fc),
    ),
    "Runic": (
        range(0x16a0, 0x16eb), range(0x16f1, 0x16f9),
    ),
    "Sinhala": (
        range(0xd85, 0xd97), range(0xd9a, 0xdb2), range(0xdb3, 0xdbc), range(0xdbd, 0xdbe),
        range(0xdc0, 0xdc7),
    ),
    "Tamil": (
        range(0xb83, 0xb84), range(0xb85, 0xb8b), range(0xb8e, 0xb91), range(0xb92, 0xb96),
        range(0xb99, 0xb9b), range(0xb9c, 0xb9d), range(0xb9e, 0xba0), range(0xba3, 0xba5),
        range(0xba8, 0xbab), range(0xbae, 0xbba), range(0xbd0, 0xbd1),
    ),
    "Telugu": (
        range(0xc05, 0xc0d), range(0xc0e, 0xc11), range(0xc12, 0xc29), range(0xc2a, 0xc3a),
        range(0xc3d, 0xc3e), range(0xc58, 0xc5b), range(0xc5c, 0xc5e), range(0xc60, 0xc62),
    ),
    "Tifinagh": (
        range(0x2d30, 0x2d68), range(0x2d6f, 0x2d70),
    ),
    "Tirhuta": (
        range(0x11480, 0x114b0), range(0x114c4, 0x114c6), range(0x114c7, 0x114c8),
    ),
    "Tolong_Siki": (
        range(0x11db0, 0x11ddc),
    ),
    "Warang_Citi": (
        range(0x118a0, 0x118e0), range(0x118ff, 0x11900),
    ),
}
"""Letters of Latin and of scripts that have look-alikes and blanks between words."""
# fmt: on
