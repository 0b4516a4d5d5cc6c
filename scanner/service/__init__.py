"""A web app of this machine in which somebody decides on flags, and an app that takes decisions made elsewhere."""
