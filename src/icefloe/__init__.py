"""Transactional, versioned storage for Zarr arrays, with a data pipeline on Apache Spark."""
