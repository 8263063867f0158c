"""Statuses of other processes, which a front passes on."""

from google.rpc import error_details_pb2, status_pb2


def info_of(status: status_pb2.Status) -> error_details_pb2.ErrorInfo:
    """Return the reason of a status and its metadata, empty if the status has none."""
    info = error_details_pb2.ErrorInfo()
    for detail in status.details:
        if detail.Unpack(info):
            break
    return info


class RefusedError(Exception):
    """The call ends with a status that another process created."""

    def __init__(self, status: bytes) -> None:
        self.status = status_pb2.Status.FromString(status)
        super().__init__(self.status.message)

    @property
    def reason(self) -> str:
        """The reason in the details of the status, "" if there is none."""
        return str(info_of(self.status).reason)

    @property
    def field(self) -> str:
        """The field that the status names, "" if it names none."""
        request = error_details_pb2.BadRequest()
        has_field = any(detail.Unpack(request) for detail in self.status.details)
        return str(request.field_violations[0].field) if has_field else ""
