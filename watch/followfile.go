package watch

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"time"
)

// fileRest is how long a file must rest before FollowFile reads it: some editors
// replace a file in several steps, and it is missing in between.
const fileRest = 100 * time.Millisecond

// FollowFile calls each with the text of the file, or the error of reading it: at the start, and
// after each change of the file or of a symbolic link on the way to it, as the kubelet changes the
// files of a mounted ConfigMap. A text may be the same as the last one. A file that a process is
// writing is read after it is closed. FollowFile returns nil when ctx ends, and an error if the
// kernel does not report all changes.
func FollowFile(ctx context.Context, path string, each func(text []byte, err error)) error {
	path, err := filepath.Abs(path)
	if err != nil {
		return fmt.Errorf("follow a file: %w", err)
	}
	n := newNotifier()
	defer n.close()
	rest, look := time.NewTimer(0), time.NewTicker(lookPeriod)
	defer rest.Stop()
	defer look.Stop()
	var read fileState
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-n.more:
			if n.handle(n.take()) {
				rest.Reset(fileRest)
			}
		case <-look.C:
			if stateOf(path) != read {
				rest.Reset(fileRest)
			}
		case <-rest.C:
			target := n.followFile(path)
			if n.blind != nil {
				return fmt.Errorf("follow %s: %w", path, n.blind)
			}
			state := stateOf(path)
			text, err := readRegular(path)
			if !n.incomplete(target) {
				read = state
				each(text, err)
			}
		}
	}
}

// readRegular reads a file. A pipe would wait for its other end, and a device may have no end.
func readRegular(path string) ([]byte, error) {
	info, err := os.Stat(path)
	if err == nil && !info.Mode().IsRegular() {
		err = fmt.Errorf("%s is no regular file", path)
	}
	if err != nil {
		return nil, err
	}
	return os.ReadFile(path)
}

// followFile follows every directory on the way to the file and returns the file's real
// path.
func (n *notifier) followFile(path string) string {
	for {
		t := targets{}
		target := t.resolve(path)
		if !n.follow(t) {
			return target
		}
	}
}
