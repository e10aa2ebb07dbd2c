"""Models whose weights and inputs are 8-bit integers with scales, and the kernel that multiplies few rows of them."""
