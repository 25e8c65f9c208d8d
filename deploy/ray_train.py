"""millrace-train on a Ray cluster: one actor for each rank, each with a GPU of its own. Python starts the ranks and watches them; the
training is all in the program.

    ray start --head; ray start --address=HEAD:6379      # on the first host; on each other one
    python3 deploy/ray_train.py --ranks 16 --restarts 5 -- \
        --shards 'http://store/train-{000000..000099}.tar' --checkpoint-dir /shared/ck --epochs 90

What follows `--` is for millrace-train, which must be installed on all hosts (--program). If a rank or its host is lost, or a server stays
away, all are started again from the newest checkpoint; --checkpoint-dir must be a folder that rank 0 sees wherever it is started.
Signals of this script go to rank 0, which passes them on: SIGTERM and Ctrl-C save and end, SIGUSR1 saves. --cpus-only: without GPUs."""

import argparse
import ctypes
import os
import random
import signal
import socket
import subprocess
import sys

try:
    import ray
    from ray.exceptions import RayError, RayTaskError
    from ray.util.placement_group import placement_group
    from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy as In
except ModuleNotFoundError as missing:
    sys.exit(f"ray_train.py: Ray is not installed here ({missing}): pip install 'ray[default]', in the Python of the cluster")

AGAIN = {4, 6}  # exit codes after which another attempt may succeed; so may it after a rank was killed
LOST = 137
KILLED = {134, 135, LOST, 139}


def dies_with_its_actor():
    # PR_SET_PDEATHSIG. At once: one that still wrote its checkpoint would be in the way of the next attempt.
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)


@ray.remote
class Rank:
    def address(self):
        """This host, and a port for rank 0: below those that the kernel gives to clients."""
        while True:
            with socket.socket() as s:
                try:
                    s.bind(("", random.randrange(15000, 25000)))
                    return ray.util.get_node_ip_address(), s.getsockname()[1]
                except OSError:
                    continue

    def start(self, words, place):
        # Ray gives each actor its GPUs alone, by CUDA_VISIBLE_DEVICES: to the program they begin with number 0.
        self.process = subprocess.Popen(words, env=os.environ | place | {"LOCAL_RANK": "0"}, preexec_fn=dies_with_its_actor)

    def ended(self, seconds):
        """The exit code, as a shell has it; None: it runs."""
        try:
            code = self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            return None
        return 128 - code if code < 0 else code

    def signal(self, number):
        self.process.send_signal(number)


def placed(references, ends):
    """Their values, once all have their places; None: it was asked to end before."""
    while not ends:
        if not ray.wait(references, num_returns=len(references), timeout=1)[1]:
            return ray.get(references)
    return None


def attempt(group, options, words, asked, ends):
    """Starts all ranks and waits until all have ended; the exit code of the one that failed first."""
    ranks = [Rank.options(num_cpus=options.cpus, num_gpus=0 if options.cpus_only else 1,
                          scheduling_strategy=In(group, placement_group_bundle_index=i)).remote() for i in range(options.ranks)]
    codes = []
    try:
        addresses = placed([rank.address.remote() for rank in ranks], ends)
        if addresses is None:
            return 128 + ends[0]
        host, port = addresses[0]
        place = {"WORLD_SIZE": str(options.ranks), "MASTER_ADDR": host, "MASTER_PORT": str(port)}
        ray.get([rank.start.remote(words, place | {"RANK": str(i)}) for i, rank in enumerate(ranks)])
        waiting = {rank.ended.remote(1): rank for rank in ranks}
        while waiting:
            while asked:
                ranks[0].signal.remote(asked.pop(0))
            for done in ray.wait(list(waiting), timeout=1)[0]:
                rank, code = waiting.pop(done), code_of(done)
                if code is None:
                    waiting[rank.ended.remote(1)] = rank
                elif code:
                    codes.append(code)
    except RayTaskError:  # there is no such program
        raise
    except RayError as lost:  # while they were started
        print(f"lost: {str(lost).splitlines()[0]}", file=sys.stderr)
        codes.append(LOST)
    finally:
        for rank in ranks:
            ray.kill(rank)
    # A rank that lost another one is not the cause.
    return next((c for c in codes if c != 6), codes[0] if codes else 0)


def code_of(done):
    try:
        return ray.get(done)
    except RayError as lost:  # the actor, or its host: the others notice that their peer is lost
        print(f"lost: {str(lost).splitlines()[0]}", file=sys.stderr)
        return LOST


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=1)
    parser.add_argument("--cpus", type=int, default=1, help="CPUs of each rank")
    parser.add_argument("--cpus-only", action="store_true")
    parser.add_argument("--restarts", type=int, default=10)
    parser.add_argument("--strategy", default="PACK", help="of the placement group: PACK, SPREAD, STRICT_PACK, STRICT_SPREAD")
    parser.add_argument("--program", default="millrace-train")
    parser.add_argument("words", nargs=argparse.REMAINDER, metavar="-- ARGUMENTS")
    options = parser.parse_args()
    words = [options.program, *options.words[options.words[:1] == ["--"]:], "--resume", "auto"]

    ray.init()
    asked, ends = [], []
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGUSR2):  # after Ray, which takes SIGTERM
        signal.signal(number, lambda n, _: (asked.append(n), n == signal.SIGUSR1 or ends.append(n)))
    bundle = {"CPU": options.cpus} | ({} if options.cpus_only else {"GPU": 1})
    group = placement_group([bundle] * options.ranks, strategy=options.strategy)
    for restarts in range(options.restarts + 1):
        code = attempt(group, options, words, asked, ends)
        if ends or not (code in AGAIN or code in KILLED):
            break
        print(f"ended with exit code {code}, after {restarts} of {options.restarts} restarts", file=sys.stderr)
    sys.exit(code)


if __name__ == "__main__":
    main()
