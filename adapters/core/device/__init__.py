"""The realization on a GPU: the states never leave the device."""
