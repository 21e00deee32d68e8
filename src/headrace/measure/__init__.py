"""From reports to figures. Pure: no Spark, no threads, no clock."""
