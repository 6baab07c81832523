"""A disk that reads and writes a given number of bytes a second: a file as a loop device, limited by the cgroup controller blkio."""
import contextlib, os, subprocess

LIMITS = "/sys/fs/cgroup/blkio/blkio.throttle.{}_bps_device"


def lacks():
    """Why there is no such disk here; None if there is one."""
    if os.geteuid() != 0:
        return "only root can mount it"
    if not os.path.exists(LIMITS.format("read")):
        return "there is no cgroup controller blkio (version 1)"
    return None


@contextlib.contextmanager
def slow_disk(folder, size, read, write):
    """Mounts a file system of `size` bytes in `folder`. From the call of what this gives on, it is limited: call it when the
    inputs are there."""
    image, place = os.path.join(folder, "disk"), os.path.join(folder, "slow")
    with open(image, "wb") as file:
        file.truncate(size)
    subprocess.run(["mkfs.ext4", "-q", image], check=True)
    os.makedirs(place, exist_ok=True)
    with contextlib.ExitStack() as undo:
        undo.callback(os.remove, image)
        # With the page cache of the file below, nothing would be slow.
        loop = subprocess.run(["losetup", "-f", "--show", "--direct-io=on", image], check=True, capture_output=True, text=True).stdout.strip()
        undo.callback(subprocess.run, ["losetup", "-d", loop], check=True)
        subprocess.run(["mount", loop, place], check=True)
        undo.callback(subprocess.run, ["umount", place], check=True)
        device = os.stat(loop).st_rdev

        def limit(read, write):
            for what, most in (("read", read), ("write", write)):
                with open(LIMITS.format(what), "w") as file:
                    file.write(f"{os.major(device)}:{os.minor(device)} {most}")

        undo.callback(limit, 0, 0)
        yield place, lambda: limit(read, write)
