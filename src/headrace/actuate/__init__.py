"""From decisions to deeds: the running job as the controller sees it, and its settings as orders."""
