"""The page of `divgrpc explore`, which compares plain with diverse results of a served index.

`Explorer` answers questions through a client, and `Application` serves its answers and the page
over HTTP. The package may import the client and files of points, and no command.
"""
