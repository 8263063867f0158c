"""`python -m divgrpc_client`, the command line."""

import sys

from divgrpc_client.cli.main import main

sys.exit(main())
