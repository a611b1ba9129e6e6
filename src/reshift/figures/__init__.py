"""The paper's figures from saved evaluations; matplotlib is imported when one is drawn."""
