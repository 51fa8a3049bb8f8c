"""examples/ray_serve.py under Ray, at a port, until standard input ends. Runs where Ray is."""

import sys

import ray
from ray import serve

from examples.ray_serve import app

if __name__ == "__main__":
    ray.init(include_dashboard=False, num_cpus=4)
    serve.start(http_options={"host": "127.0.0.1", "port": int(sys.argv[1])})
    serve.run(app)
    print("ready", flush=True)
    sys.stdin.read()
    serve.shutdown()
    ray.shutdown()
