"""Models whose weights and inputs are 8-bit integers with scales, and a kernel that multiplies few rows."""
