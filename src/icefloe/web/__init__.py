"""Pages that show a repository in a browser: its tree, its data and its history.

    texts         texts of a repository, cut and without commands
    versions      the repository that is shown, and the version that a page is about
    picker        the choice of a version, and the page that it opens
    nodes         groups and arrays as rows of the tree
    chunks        how many chunks of each kind an array has, and where
    times         arrays of times as dates
    pictures      coarse values for a map, an image or a line, with a limit on what is read
    diffs         nodes and chunks of two versions compared
    regions       many chunks as few boxes, in coordinates
    differences   the values of two versions subtracted, as a picture
    history       commits as rows, with the lines between them
    history_pages the pages of history, commits and differences
    zarr_files    Zarr over HTTP
    sources       the files of virtual chunks: counts, and their state now
    dependencies  the containers of virtual chunks, and the options that authorise them
    references    where a chunk is stored
    archive_pages coverage, sources, dependencies and chunks as pages
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
