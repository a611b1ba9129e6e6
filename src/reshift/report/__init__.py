"""Pages for people: the evaluation report and the comparison."""
