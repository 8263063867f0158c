"""The error of bytes that another process of the server should not have sent."""


class FrameError(Exception):
    """A packet, a frame or a batch does not have the form that its reader expects.

    Only a defect leads to such bytes. The reader drops their sender, and serves others.
    """
