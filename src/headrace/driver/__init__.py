"""What decides and supervises, in the driver, without Spark.

In come a job, messages of workers and reports; out go a plan (``planning``), replies and tickets (``coordinator``),
commits (``committing``, ``publishing``), and what the controller's wishes mean for the query (``steering``,
``provisioning``). ``spark`` carries it out.
"""
