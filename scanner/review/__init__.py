"""A web app of this machine in which somebody looks at flags and decides on them; what others decide comes back."""
