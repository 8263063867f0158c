"""The fork server, which loads kernels once and forks the processes that use them."""
