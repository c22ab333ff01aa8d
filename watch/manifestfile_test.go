package watch

import (
	"bytes"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// always takes updates until one has the cluster IPs, and fails for one without exactly the others.
func (f *follower) always(others, want []string) {
	f.Helper()
	for timeout := time.After(patience); ; {
		select {
		case <-f.out.C():
			u, ok := f.out.Take()
			if !ok {
				continue
			}
			f.last = u.Snapshot
		case <-timeout:
			f.Fatalf("cluster IPs are %v, want %v", f.addresses(), want)
		}
		if slices.Equal(f.addresses(), want) {
			return
		}
		if !slices.Equal(f.addresses(), others) {
			f.Fatalf("cluster IPs were %v for a moment, want %v", f.addresses(), others)
		}
	}
}

// staysFor takes updates for a while, and fails for one without exactly the cluster IPs.
func (f *follower) staysFor(d time.Duration, want ...string) {
	f.Helper()
	end := time.After(d)
	for {
		select {
		case <-f.out.C():
			if u, ok := f.out.Take(); ok {
				if f.last = u.Snapshot; !slices.Equal(f.addresses(), want) {
					f.Errorf("cluster IPs were %v, want %v all the time", f.addresses(), want)
				}
			}
		case <-end:
			return
		}
	}
}

// TestReplacedInSteps: a file that is replaced in two steps keeps its objects between them, and has the new ones when
// the time for the old ones is over. The clock that counts this time stands still between the steps, however long they
// take.
func TestReplacedInSteps(t *testing.T) {
	for name, replace := range map[string]func(path string){
		"renamed away and written anew": func(path string) { // vi with backupcopy=no
			must(t, os.Rename(path, path+"~"))
			time.Sleep(50 * time.Millisecond)
			write(t, path, manifest("a", "10.96.0.2"))
		},
		"removed and written anew": func(path string) {
			must(t, os.Remove(path))
			time.Sleep(50 * time.Millisecond)
			write(t, path, manifest("a", "10.96.0.2"))
		},
		"emptied and written later": func(path string) {
			write(t, path, nil)
			time.Sleep(50 * time.Millisecond)
			write(t, path, manifest("a", "10.96.0.2"))
		},
		"renamed away and written slowly": func(path string) {
			must(t, os.Rename(path, path+"~"))
			file, err := os.Create(path)
			must(t, err)
			_, err = file.WriteString("apiVersion: v1\n")
			must(t, err)
			time.Sleep(50 * time.Millisecond)
			_, err = file.Write(manifest("a", "10.96.0.2")[len("apiVersion: v1\n"):])
			must(t, err)
			must(t, file.Close())
		},
		"removed with its directory": func(path string) {
			must(t, os.RemoveAll(filepath.Dir(path)))
			must(t, os.Mkdir(filepath.Dir(path), 0o755))
			time.Sleep(50 * time.Millisecond)
			write(t, path, manifest("a", "10.96.0.2"))
			write(t, filepath.Join(filepath.Dir(path), "b.yaml"), manifest("b", "10.96.0.9"))
		},
		"a link that points elsewhere": func(path string) {
			elsewhere := filepath.Join(t.TempDir(), "new.yaml")
			write(t, elsewhere, manifest("a", "10.96.0.2"))
			must(t, os.Remove(path))
			time.Sleep(50 * time.Millisecond)
			must(t, os.Symlink(elsewhere, path))
		},
		"under another name": func(path string) {
			must(t, os.Rename(path, filepath.Join(filepath.Dir(path), "c.yaml")))
			write(t, filepath.Join(filepath.Dir(path), "c.yaml"), manifest("a", "10.96.0.2"))
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := filepath.Join(t.TempDir(), "manifests")
			must(t, os.Mkdir(dir, 0o755))
			path := filepath.Join(dir, "a.yaml")
			write(t, path, manifest("a", "10.96.0.1"))
			write(t, filepath.Join(dir, "b.yaml"), manifest("b", "10.96.0.9"))
			var passed atomic.Int64
			f := followAt(t, dir, Options{}, func() time.Time { return time.Unix(1, passed.Load()) })
			before, after := []string{"10.96.0.1", "10.96.0.9"}, []string{"10.96.0.2", "10.96.0.9"}
			f.await(before...)
			done := make(chan struct{})
			go func() {
				defer close(done)
				replace(path)
			}()
			f.always(before, after)
			<-done
			passed.Store(int64(2 * gonePeriod))
			write(t, filepath.Join(dir, "d.yaml"), manifest("d", "10.96.0.4"))
			f.always(after, []string{"10.96.0.2", "10.96.0.9", "10.96.0.4"})
			for len(f.reported) > 0 {
				if p := <-f.reported; !errors.Is(p, ErrNoNode) && !errors.Is(p, os.ErrNotExist) {
					t.Errorf("said %v", p)
				}
			}
		})
	}
}

// TestHalfWritten: a file is read when two looks have found it the same, and not while it grows, whether it is written
// over, is new or comes after one that went. The looks come when the test says.
func TestHalfWritten(t *testing.T) {
	for name, begin := range map[string]func(path string){
		"written over":     func(string) {},
		"removed before":   func(path string) { must(t, os.Remove(path)) },
		"gone for a while": func(path string) { must(t, os.Rename(path, path+"~")) },
	} {
		s := newScript(t)
		m, path := s.manifests, filepath.Join(s.dir, "a.yaml")
		write(t, path, manifest("a", "10.96.0.1"))
		look := func(when, want string) {
			t.Helper()
			must(t, m.look())
			if f := m.files[0]; len(f.objects) != 1 || f.objects[0].key.String() != "Service "+want || len(m.problems()) != 0 {
				t.Errorf("%s, %s: the file is %+v", name, when, f)
			}
		}
		look("at the start", "default/a")
		begin(path)
		if name == "gone for a while" {
			look("between", "default/a")
		}
		file, err := os.Create(path)
		must(t, err)
		for range 3 {
			_, err = file.WriteString("# not yet\n")
			must(t, err)
			look("half written", "default/a")
		}
		_, err = file.Write(manifest("b", "10.96.0.2"))
		must(t, err)
		must(t, file.Close())
		look("just written", "default/a")
		look("at rest", "default/b")

		file, err = os.OpenFile(path, os.O_WRONLY|os.O_TRUNC, 0) // a writer that rests
		must(t, err)
		for range 3 {
			look("open for writing", "default/b")
		}
		_, err = file.Write(manifest("c", "10.96.0.3"))
		must(t, err)
		for range 3 {
			look("open for writing still", "default/b")
		}
		must(t, file.Close())
		look("closed", "default/c")
	}
}

// TestHalfWrittenAtStart: what was half written when the proxy started is read again.
func TestHalfWrittenAtStart(t *testing.T) {
	s := newScript(t)
	m, path := s.manifests, filepath.Join(s.dir, "a.yaml")
	write(t, path, []byte("# not yet\n"))
	must(t, m.look())
	write(t, path, manifest("a", "10.96.0.1"))
	for range 2 {
		must(t, m.look())
	}
	if len(m.files) != 1 || len(m.files[0].objects) != 1 {
		t.Errorf("files are %+v", m.files)
	}
}

// TestSeenWithinASecond: two looks, which a change takes at most, leave time for the reading.
func TestSeenWithinASecond(t *testing.T) {
	if 2*lookPeriod > 900*time.Millisecond || 2*lookPeriod >= gonePeriod {
		t.Errorf("a change takes %v until it counts, and a file that is replaced in steps is gone after %v", 2*lookPeriod,
			gonePeriod)
	}
}

// TestEditorsFiles: backups and temporary files of editors are no manifests.
func TestEditorsFiles(t *testing.T) {
	dir := t.TempDir()
	write(t, filepath.Join(dir, "a.yaml"), manifest("a", "10.96.0.1"))
	f := follow(t, dir)
	f.await("10.96.0.1")
	for _, name := range []string{
		"a.yaml~", ".a.yaml.swp", ".a.swp.yaml", "#a.yaml#", "a.yaml.bak", "a.yaml.orig", "4913", "a.yaml___jb_tmp___",
		".#a.yaml", "sedAbc123", ".a.yaml.Xy12Z3",
	} {
		write(t, filepath.Join(dir, name), manifest("other", "10.96.0.9"))
	}
	write(t, filepath.Join(dir, "b.yaml"), manifest("b", "10.96.0.2"))
	f.await("10.96.0.1", "10.96.0.2")
}

// TestUnreadable: files and directories that the process may not read are told of, at the start and later. What is
// known of them stays, others are followed, and they count once they can be read.
func TestUnreadable(t *testing.T) {
	t.Parallel()
	if !unprivileged(t) {
		return
	}
	dir := t.TempDir()
	secret, open := filepath.Join(dir, "secret.yaml"), filepath.Join(dir, "open.yaml")
	write(t, open, manifest("open", "10.96.0.1"))
	write(t, secret, manifest("secret", "10.96.0.2"))
	must(t, os.Chmod(secret, 0))
	f := follow(t, dir)
	f.await("10.96.0.1")
	f.awaitProblem("secret.yaml: permission denied (nftproxy reads files as its user")
	must(t, os.Chmod(secret, 0o644))
	f.await("10.96.0.1", "10.96.0.2")
	must(t, os.Chmod(secret, 0))
	f.awaitProblem("secret.yaml: permission denied")
	write(t, open, manifest("open", "10.96.0.3"))
	f.await("10.96.0.3", "10.96.0.2")

	must(t, os.Chmod(dir, 0))
	f.awaitProblem(dir + ": permission denied")
	f.staysFor(3*lookPeriod, "10.96.0.3", "10.96.0.2")
	must(t, os.Chmod(dir, 0o755))
	must(t, os.Chmod(secret, 0o644))
	write(t, open, manifest("open", "10.96.0.4"))
	f.await("10.96.0.4", "10.96.0.2")

	// A file in a directory that can be searched and not read is followed.
	must(t, os.Chmod(dir, 0o311))
	one := follow(t, open)
	one.await("10.96.0.4")
	write(t, open, manifest("open", "10.96.0.5"))
	one.await("10.96.0.5")
	must(t, os.Chmod(dir, 0o755))
}

// TestUnreadableAtStart: nothing is published until the directory can be read.
func TestUnreadableAtStart(t *testing.T) {
	t.Parallel()
	if !unprivileged(t) {
		return
	}
	dir := t.TempDir()
	write(t, filepath.Join(dir, "a.yaml"), manifest("a", "10.96.0.1"))
	must(t, os.Chmod(dir, 0))
	f := follow(t, dir)
	p := f.awaitProblem("until then the rules stay as they are")
	if e := (*UnreadableError)(nil); !errors.As(p, &e) {
		t.Errorf("said %v", p)
	}
	select {
	case <-f.out.C():
		t.Error("published something")
	case <-time.After(3 * lookPeriod):
	}
	must(t, os.Chmod(dir, 0o755))
	f.await("10.96.0.1")
}

// unprivileged says whether the process is without root's rights over files. If it has them, it runs the test in
// another process that has not.
func unprivileged(t *testing.T) bool {
	t.Helper()
	const nobody = 65534
	return os.Geteuid() != 0 ||
		again(t, nobody, &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: nobody, Gid: nobody}})
}

// again says whether the process is one that again has started. If not, it starts one for the test, with a temporary
// directory of the user, and waits for its end.
func again(t *testing.T, user int, as *syscall.SysProcAttr) bool {
	t.Helper()
	const variable = "NFTPROXY_TEST_AGAIN"
	if os.Getenv(variable) == t.Name() {
		return true
	}
	dir, err := os.MkdirTemp("", "again-")
	must(t, err)
	t.Cleanup(func() { os.RemoveAll(dir) })
	must(t, os.Chown(dir, user, -1))
	self, err := os.ReadFile("/proc/self/exe") // Its directory may be closed to the user.
	must(t, err)
	binary := filepath.Join(dir, "watch.test")
	// A process that another test starts now would have the file open for writing, and nobody could run it.
	syscall.ForkLock.RLock()
	err = os.WriteFile(binary, self, 0o755)
	syscall.ForkLock.RUnlock()
	must(t, err)
	cmd := exec.Command(binary, "-test.v", "-test.run=^"+t.Name()+"$")
	cmd.Dir, cmd.Env, cmd.SysProcAttr = dir, append(os.Environ(), "TMPDIR="+dir, variable+"="+t.Name()), as
	out, err := cmd.CombinedOutput()
	if errors.Is(err, os.ErrPermission) {
		t.Skipf("the kernel gives no such process: %v", err)
	}
	if err != nil || !bytes.Contains(out, []byte("--- PASS: "+t.Name())) {
		t.Errorf("in a process of its own: %v\n%s", err, out)
	}
	return false
}

// TestMounted: a file system that comes over the directory is found although no event tells of it, and so is its end.
func TestMounted(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		t.Skip("needs root, to mount")
	}
	dir := t.TempDir()
	write(t, filepath.Join(dir, "a.yaml"), manifest("a", "10.96.0.1"))
	f := follow(t, dir)
	f.await("10.96.0.1")
	must(t, unix.Mount("tmpfs", dir, "tmpfs", 0, "size=1m"))
	mounted := true
	t.Cleanup(func() {
		if mounted {
			_ = unix.Unmount(dir, unix.MNT_DETACH)
		}
	})
	write(t, filepath.Join(dir, "b.yaml"), manifest("b", "10.96.0.2"))
	f.await("10.96.0.2")
	must(t, unix.Unmount(dir, unix.MNT_DETACH))
	mounted = false
	f.await("10.96.0.1")
}
