"""The device path: what a pass does on a CUDA device, in fixed shapes and without a read by the host."""
