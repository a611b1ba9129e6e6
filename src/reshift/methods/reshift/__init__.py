"""The default method: dense discrimination of reconstruction shifts. One file per witness, and what they are trained on."""
