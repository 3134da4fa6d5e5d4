"""The environments of the systems that the benchmarks compare with."""
