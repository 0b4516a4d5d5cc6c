"""Task files of lm_eval, without their data; see tests.support.from_packages."""
