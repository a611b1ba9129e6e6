"""Findings: connected regions of a heat-map above the calibrated pixel threshold, measured in the scan's own space."""
