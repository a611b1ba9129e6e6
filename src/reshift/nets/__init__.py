"""Plain ``nn.Module`` networks, one per file; no base class above ``nn.Module``."""
