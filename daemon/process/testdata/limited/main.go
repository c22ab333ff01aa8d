// Command limited uses the capabilities that it has, limits itself to the capabilities of its arguments, and prints the states that are left:
// those of all its threads, and that of a program that it starts.
package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"sync"

	"nftproxy/daemon/process"
)

func main() {
	if len(os.Args) == 1 {
		print(states())
		return
	}
	keep := process.Capabilities(0)
	for _, a := range os.Args[1:] {
		n, err := strconv.Atoi(a)
		check(err)
		keep |= process.CapabilitiesOf(n)
	}
	// Threads that are there already, and more afterwards: each goroutine has one of its own.
	end := threads(5)
	check(process.UseCapabilities())
	_, after, err := process.LimitCapabilities(keep)
	check(err)
	endMore := threads(10)
	print(append(states(), after))
	end()
	endMore()
	child := exec.Command("/proc/self/exe")
	child.Stdout, child.Stderr = os.Stdout, os.Stderr
	check(child.Run())
}

func threads(n int) (end func()) {
	stop := make(chan struct{})
	var ready, ended sync.WaitGroup
	for range n {
		ready.Add(1)
		ended.Go(func() {
			runtime.LockOSThread()
			defer runtime.UnlockOSThread()
			ready.Done()
			<-stop
		})
	}
	ready.Wait()
	return func() {
		close(stop)
		ended.Wait()
	}
}

// states returns those of all threads.
func states() (list []process.CapabilityState) {
	dirs, err := filepath.Glob("/proc/self/task/*")
	check(err)
	for _, dir := range dirs {
		s, err := process.ThreadCapabilities(dir)
		if errors.Is(err, fs.ErrNotExist) {
			continue // The thread has ended.
		}
		check(err)
		list = append(list, s)
	}
	return list
}

func print(list []process.CapabilityState) {
	check(json.NewEncoder(os.Stdout).Encode(list))
}

func check(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
