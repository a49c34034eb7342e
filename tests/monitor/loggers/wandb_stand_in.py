"""A server that answers wandb's service as W&B would as far as a run needs it, and asks each run to stop."""

import contextlib
import gzip
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

PROJECT = {"id": "p", "name": "shoal", "entity": {"id": "e", "name": "me"}}
BUCKET = {
    "id": "x",
    "displayName": "",
    "description": "",
    "config": "{}",
    "sweepName": None,
    "historyLineCount": 0,
}


class Handler(BaseHTTPRequestHandler):
    def do_POST(self):
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        if self.headers.get("Content-Encoding") == "gzip":
            body = gzip.decompress(body)
        answer = {}
        if self.path == "/graphql":
            request = json.loads(body)
            answer = {"data": self._graphql(request["operationName"], request.get("variables", {}))}
        elif self.path.endswith("/file_stream"):
            self.server.streamed.append((self.path.split("/")[-2], json.loads(body)))
            answer = {"exitcode": None, "limits": {}, "stopped": self.server.stops}
        data = json.dumps(answer).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    do_GET = do_PUT = do_POST

    def _graphql(self, operation, variables):
        if operation == "UpsertBucket":
            self.server.upserts.append(variables)
            bucket = BUCKET | {"name": variables.get("name"), "project": PROJECT}
            return {"upsertBucket": {"bucket": bucket, "inserted": True}}
        return {
            "RunResumeStatus": {"model": PROJECT | {"bucket": None}},
            "ServerFeaturesQuery": {"serverInfo": {"features": []}},
            "Viewer": {
                "viewer": {"id": "v", "entity": "me", "username": "me", "flags": "{}", "teams": {"edges": []}}
            },
            "CreateRunFiles": {"createRunFiles": {"runID": "x", "uploadHeaders": [], "files": []}},
        }.get(operation, {})

    def log_message(self, *_):
        pass


@contextlib.contextmanager
def stand_in():
    """Serve; gives the server, with what it was sent."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.streamed, server.upserts, server.stops = [], [], True
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def history(server, number):
    """Return the rows of a run that the server was sent."""
    parts = [body["files"] for run, body in server.streamed if run == number and body.get("files")]
    return [
        json.loads(line)
        for files in parts
        for line in files.get("wandb-history.jsonl", {}).get("content", [])
    ]
