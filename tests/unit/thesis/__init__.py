"""What the theses describe and no job runs: reference algorithms, and the tests of their facts."""
