"""Files in, network input out: read → Image → prepare → [-1, 1]; the way back is ``prepare.restore``."""
