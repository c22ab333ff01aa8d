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

// FollowFile calls each with the text of the file, or the error of reading it: at the
// start, and after each change of the file or of a symbolic link on the way to it, as
// the kubelet changes the files of a mounted ConfigMap. A text may be the same as the
// last one. A file that a process is writing counts once it is closed. FollowFile
// returns nil when ctx ends.
func FollowFile(ctx context.Context, path string, each func(text []byte, err error)) error {
	path, err := filepath.Abs(path)
	if err != nil {
		return fmt.Errorf("follow a file: %w", err)
	}
	n, err := newNotifier()
	if err != nil {
		return fmt.Errorf("follow %s: %w", path, err)
	}
	defer n.close()
	rest := time.NewTimer(0)
	defer rest.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case events := <-n.events:
			if n.handle(events) {
				rest.Reset(fileRest)
			}
		case <-rest.C:
			target, err := n.followFile(path)
			if err != nil {
				return fmt.Errorf("follow %s: %w", path, err)
			}
			if !n.writing[target] {
				each(os.ReadFile(path))
			}
		}
	}
}

// followFile follows every directory on the way to the file and returns the file's real
// path.
func (n *notifier) followFile(path string) (string, error) {
	for {
		t := targets{}
		target := t.resolve(path)
		if added, err := n.follow(t); err != nil || !added {
			return target, err
		}
	}
}
