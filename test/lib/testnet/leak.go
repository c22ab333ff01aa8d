package testnet

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"time"
)

// settling bounds the wait for what was told to end.
const settling = 10 * time.Second

// CheckLeaks uses something a few times and compares what the process holds before
// and after: open files, threads in other namespaces, goroutines. It looks at the whole process, so nothing else may
// run beside it.
func CheckLeaks[T TB](t T, use func(T)) {
	t.Helper()
	use(t) // once before, for what the runtime and the libraries keep
	before := held(t)
	for range 3 {
		use(t)
	}
	// A goroutine or thread that was told to end may take a moment, and nothing
	// tells when it has.
	var more []string
	for deadline := time.Now().Add(settling); time.Now().Before(deadline); time.Sleep(time.Millisecond) {
		if more = held(t).beyond(before); len(more) == 0 {
			return
		}
	}
	t.Errorf("left over: %v", more)
}

// ThreadNamespaces names the network namespaces that threads of the process are in.
func ThreadNamespaces(t TB) []string {
	t.Helper()
	paths, err := filepath.Glob("/proc/self/task/*/ns/net")
	if err != nil {
		t.Fatalf("look at the process: %v", err)
	}
	var names []string
	for _, path := range paths {
		if name, err := os.Readlink(path); err == nil { // else the thread has ended
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// resources are what a process may leak.
type resources struct {
	files      []string
	namespaces []string
	goroutines int
}

func held(t TB) resources {
	t.Helper()
	links, err := filepath.Glob("/proc/self/fd/*")
	if err != nil {
		t.Fatalf("look at the process: %v", err)
	}
	var r resources
	for _, link := range links {
		if name, err := os.Readlink(link); err == nil { // else it was the directory being read
			r.files = append(r.files, name)
		}
	}
	slices.Sort(r.files)
	r.namespaces = ThreadNamespaces(t)
	r.goroutines = runtime.NumGoroutine()
	return r
}

// beyond names what r holds and before did not.
func (r resources) beyond(before resources) []string {
	var more []string
	was := slices.Concat(before.files, before.namespaces)
	for _, name := range slices.Concat(r.files, r.namespaces) {
		if !slices.Contains(was, name) {
			more = append(more, name)
		}
	}
	if n := len(r.files) - len(before.files); n > 0 {
		more = append(more, fmt.Sprintf("%d files", n))
	}
	if n := r.goroutines - before.goroutines; n > 0 {
		more = append(more, fmt.Sprintf("%d goroutines", n))
	}
	return more
}
