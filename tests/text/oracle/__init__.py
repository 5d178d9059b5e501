"""What kept normalizers say, beside `normalize`: `make normalise-oracle`."""
