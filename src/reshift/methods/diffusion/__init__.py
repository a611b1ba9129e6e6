"""The diffusion baselines, with the samplers and the simplex noise that they share."""
