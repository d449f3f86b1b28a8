"""The same function as `slow.py` on LitServe, run by a Python that has it: see `goodput.py`.

python litserve_server.py PORT WORKERS TIMEOUT
"""
# pyright: basic, reportMissingImports=false
# ruff: noqa: D101, D102 - the peer's interface, in an environment without this project

import sys
import time

import litserve


class Slow(litserve.LitAPI):
    def setup(self, device):
        pass

    def decode_request(self, request):
        return request["seconds"]

    def predict(self, seconds):
        time.sleep(seconds)
        return seconds

    def encode_response(self, output):
        return {"seconds": output}


if __name__ == "__main__":
    port, workers, timeout = sys.argv[1:]
    litserve.LitServer(
        Slow(), accelerator="cpu", workers_per_device=int(workers), timeout=float(timeout)
    ).run(
        host="127.0.0.1",
        port=int(port),
        num_api_servers=1,
        log_level="warning",
        generate_client_file=False,
        access_log=False,
    )
