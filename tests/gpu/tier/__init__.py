"""What tests/gpu/run is made of."""
