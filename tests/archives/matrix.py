"""All cases."""

from dataclasses import replace

from tests.archives import fits, grib, hdf5, netcdf, samples, stores, tiff
from tests.archives.cases import Case, Refused

NOT_YET = frozenset(
    {
        "netcdf-4-szip",
        "netcdf-4-bzip2",
        "netcdf-4-compound-type",
        "netcdf-4-variable-length-type",
        "netcdf-4-days-by-month-chunks-of-a-month",
        "netcdf-4-days-by-month-chunks-of-10-days",
        "netcdf-4-packed-differently-in-each-file",
        "netcdf-4-coordinates-that-differ-by-rounding",
        "netcdf-4-variables-missing-in-some-files",
        "netcdf-4-types-that-differ",
        "netcdf-4-compression-that-differs",
        "netcdf-4-chunks-that-differ",
        "netcdf-4-times-that-overlap",
        "netcdf-4-a-file-without-any-time",
        "hdf5-lzf",
        "hdf5-integers-with-offset-filter",
        "hdf5-lz4",
        "hdf5-blosc2",
        "hdf5-bitshuffle",
        "hdf5-zfp",
        "hdf5-external-links",
        "hdf5-virtual-datasets",
        "hdf5-values-in-another-file",
        "hdf5-a-dataset-without-a-shape",
        "zarr-format-2-zlib-and-shuffle",
    }
)
"""Cases that are refused for now, in all forms."""
_REFUSED = Refused("nothing was written|could not open")


def _as_it_is(case: Case) -> Case:
    return replace(case, virtual=_REFUSED, native=_REFUSED) if case.name in NOT_YET else case


CASES: tuple[Case, ...] = tuple(
    _as_it_is(case)
    for case in (
        *netcdf.CASES,
        *hdf5.CASES,
        *grib.CASES,
        *tiff.CASES,
        *fits.CASES,
        *stores.CASES,
        *samples.CASES,
    )
)
assert {case.name for case in CASES} >= NOT_YET
