"""Chakra execution traces (MLCommons; Sridharan et al., "Chakra: Advancing Performance Benchmarking and Co-design using
Standardized Execution Traces", 2023), as far as they tell of computations and messages."""
