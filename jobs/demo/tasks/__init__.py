"""Task files of lm_eval, without their data; see jobs.demo.from_packages."""
