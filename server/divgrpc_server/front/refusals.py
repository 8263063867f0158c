"""Statuses of other processes, which a front passes on."""

from google.rpc import error_details_pb2, status_pb2


class RefusedError(Exception):
    """The call ends with a status that another process created."""

    def __init__(self, status: bytes) -> None:
        self.status = status_pb2.Status.FromString(status)
        super().__init__(self.status.message)

    @property
    def reason(self) -> str:
        """The reason in the details of the status, "" if there is none."""
        info = error_details_pb2.ErrorInfo()
        has_info = any(detail.Unpack(info) for detail in self.status.details)
        return str(info.reason) if has_info else ""

    @property
    def field(self) -> str:
        """The field that the status names, "" if it names none."""
        request = error_details_pb2.BadRequest()
        has_field = any(detail.Unpack(request) for detail in self.status.details)
        return str(request.field_violations[0].field) if has_field else ""
