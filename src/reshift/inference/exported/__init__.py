"""What ``reshift export`` leaves: read such a folder (load.py), and score images with it without reshift (run.py)."""
