"""All cases."""

from dataclasses import replace

from tests.archives import fits, grib, hdf5, netcdf, samples, stores, tiff
from tests.archives.cases import Case, Refused

NOT_YET = frozenset(
    {
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
