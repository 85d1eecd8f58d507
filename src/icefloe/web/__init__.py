"""Pages that show a repository in a browser: its tree, its data and its history.

    versions      the repository that is shown, and the version that a page is about
    nodes         groups and arrays as rows of the tree
    chunks        how many chunks of each kind an array has, and where
    pictures      coarse values for a map, an image or a line, with a limit on what is read
    zarr_files    Zarr over HTTP
    selection     the steps of dimensions that a request asks for, and what they cost
    decoding      stored numbers as the CF conventions mean them
    data          values of arrays with their coordinates
    formats       values as JSON, CSV, Arrow, and (netcdf) netCDF
    tiles         map tiles of regular grids
    plans         where the chunks of a selection are, for programs that read them themselves
    data_site     the routes of data, tiles and plans
    origins       sites whose pages may read data
    site          the application: routes, templates, headers

The pages need no accounts and change nothing. `icefloe view` serves them for one repository.
"""
