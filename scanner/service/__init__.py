"""A web app where somebody decides on flags, an app that takes decisions made elsewhere, and the detector."""
