"""N-grams that many texts of earlier nights hold, such as a platform's own templates, which a scan leaves out."""
