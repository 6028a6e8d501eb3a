"""The built-in recogniser, and what decoding asks of any other."""
