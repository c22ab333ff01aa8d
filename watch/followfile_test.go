package watch

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// readings is what FollowFile read.
type readings struct {
	*testing.T
	texts chan string
}

func followFile(t *testing.T, path string) readings {
	r := readings{t, make(chan string, 100)}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		FollowFile(ctx, path, func(text []byte, err error) {
			if err != nil {
				text = []byte("missing")
				if !errors.Is(err, fs.ErrNotExist) {
					text = []byte(err.Error())
				}
			}
			r.texts <- string(text)
		})
	}()
	t.Cleanup(func() {
		cancel()
		<-ended
	})
	return r
}

// await waits for a text. Only the text that was read last may come before it again,
// since a file is read again whatever has happened to it.
func (r readings) await(last, want string) {
	r.Helper()
	timeout := time.After(patience)
	for {
		select {
		case got := <-r.texts:
			if got == want {
				return
			}
			if got != last {
				r.Fatalf("read %q, want %q after %q", got, want, last)
			}
		case <-timeout:
			r.Fatalf("%q was not read", want)
		}
	}
}

// TestFollowOneFileOfConfigMap: the swap of ..data, which neither writes nor renames the
// file itself, is noticed each time (kubernetes/kubernetes#86869).
func TestFollowOneFileOfConfigMap(t *testing.T) {
	dir := t.TempDir()
	publish := func(version, text string) {
		must(t, os.Mkdir(filepath.Join(dir, version), 0o755))
		write(t, filepath.Join(dir, version, "config.conf"), []byte(text))
		must(t, os.Symlink(version, filepath.Join(dir, "..data_tmp")))
		must(t, os.Rename(filepath.Join(dir, "..data_tmp"), filepath.Join(dir, "..data")))
	}
	publish("..2026_1", "one")
	must(t, os.Symlink(filepath.Join("..data", "config.conf"), filepath.Join(dir, "config.conf")))
	r := followFile(t, filepath.Join(dir, "config.conf"))
	r.await("", "one")
	publish("..2026_2", "two")
	must(t, os.RemoveAll(filepath.Join(dir, "..2026_1")))
	r.await("one", "two")
	publish("..2026_3", "three")
	r.await("two", "three")
}

// TestFollowOneFile: a file that is written slowly, replaced, removed, and made again
// with its directory.
func TestFollowOneFile(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "etc")
	must(t, os.Mkdir(dir, 0o755))
	path := filepath.Join(dir, "config.conf")
	write(t, path, []byte("one"))
	r := followFile(t, path)
	r.await("", "one")

	file, err := os.OpenFile(path, os.O_WRONLY|os.O_TRUNC, 0)
	must(t, err)
	_, err = file.WriteString("t")
	must(t, err)
	_, err = file.WriteString("wo")
	must(t, err)
	must(t, file.Close())
	r.await("one", "two")

	write(t, path+".new", []byte("three"))
	must(t, os.Rename(path+".new", path))
	r.await("two", "three")
	must(t, os.RemoveAll(dir))
	r.await("three", "missing")
	must(t, os.Mkdir(dir, 0o755))
	write(t, path, []byte("four"))
	r.await("missing", "four")
}
