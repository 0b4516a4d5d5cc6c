"""The golden night: one scan with everything turned on, whose every output is compared with what it was before."""
