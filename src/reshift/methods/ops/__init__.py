"""Image operations that several methods share: filters and augmentation."""
