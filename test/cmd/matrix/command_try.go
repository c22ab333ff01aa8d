package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"nftproxy/test/lib/aptget"
)

// commandJob is the name of the job that a person gives.
const commandJob = "command"

// commandOptions are the flags of matrix run.
type commandOptions struct {
	kernel       string
	command      []string
	logs         string
	memory, disk int
	cpus         int
	kvm          bool
	userMode     bool
	timeout      time.Duration
}

func parseCommand(args []string) (commandOptions, error) {
	var o commandOptions
	f := pflag.NewFlagSet("matrix run [flags] COMMAND...", pflag.ContinueOnError)
	f.SetInterspersed(false) // flags after the command are the command's
	f.StringVar(&o.kernel, "kernel", "6.12", "`series` of the machine's kernel")
	f.StringVar(&o.logs, "logs", "bin/kernels", "`folder` for what the kernel says")
	f.IntVar(&o.memory, "memory", 6144, "`MiB` of the machine's memory")
	f.IntVar(&o.disk, "disk", 32, "most `GiB` of the files below "+diskDir)
	f.IntVar(&o.cpus, "cpus", 2, "`number` of processors of the machine")
	f.BoolVar(&o.kvm, "kvm", false, "have this computer's processor run the machine, by /dev/kvm")
	f.BoolVar(&o.userMode, "user-mode", false, "build the kernel as a program of this computer, with one processor "+
		"before 6.19")
	f.DurationVar(&o.timeout, "timeout", time.Hour, "end the machine after this `time`")
	if err := f.Parse(args); err != nil {
		return o, err
	}
	if o.kvm && o.userMode {
		return o, errors.New("--user-mode is another way than --kvm")
	}
	if o.command = f.Args(); len(o.command) == 0 {
		return o, errors.New("say which command to run")
	}
	return o, nil
}

// tryCommand runs a command as root under another kernel, among this computer's files, mounted read-only.
func tryCommand(ctx context.Context, args []string, out io.Writer) (err error) {
	o, err := parseCommand(args)
	if err != nil {
		return err
	}
	r, err := findRelease(o.kernel)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, o.timeout)
	defer cancel()
	dir, err := os.MkdirTemp("/var/tmp", "matrix-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	m, lacking, err := o.machine(ctx, r, dir, out)
	if err != nil {
		return err
	}
	if !o.userMode { // whose kernel opens this computer's files itself
		files, err := shareFiles(ctx, filepath.Join(dir, "files"))
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, files.stop()) }()
		m.devices = append(m.devices, files.devices(o.memory)...)
	}
	here, err := os.Getwd()
	if err != nil {
		return err
	}
	var status int
	err = m.run(ctx, []job{{Name: commandJob, Dir: here, Command: o.command}}, func(_ string, done outcome) error {
		for _, r := range done.asked {
			if lacking[moduleName(r.Module)] {
				fmt.Fprintf(out, "%s asked for a module that is not there: %s\n", r.By, r.Module)
			}
		}
		if status = done.status; done.died {
			return fmt.Errorf("the machine ended in the middle of the command; its last words:%s", done.console)
		}
		return nil
	})
	if err == nil && status != 0 {
		err = fmt.Errorf("%s: exit status %d", strings.Join(o.command, " "), status)
	}
	return err
}

// machine is a machine with the release's kernel and an empty disk, and the names of the modules that it lacks. Its
// files go into the folder.
func (o commandOptions) machine(ctx context.Context, r release, dir string, out io.Writer) (m machine,
	lacking map[string]bool, err error) {
	const arch = "amd64"
	t, err := targetOf(arch)
	if err != nil {
		return m, nil, err
	}
	qemu, err := t.emulator(o.userMode)
	if err != nil {
		return m, nil, err
	}
	cache, err := aptget.CacheDir(cacheName(arch))
	if err != nil {
		return m, nil, err
	}
	kernel, err := r.unpack(ctx, cache, arch, o.userMode, out)
	if err != nil {
		return m, nil, err
	}
	vmlinuz, err := kernelFile(kernel)
	if err != nil {
		return m, nil, err
	}
	disk := filepath.Join(dir, "disk")
	mkfs, err := aptget.Command("mkfs.ext4", "e2fsprogs")
	if err != nil {
		return m, nil, err
	}
	if text, err := exec.CommandContext(ctx, mkfs, "-q", disk, fmt.Sprintf("%dG", o.disk)).CombinedOutput(); err != nil {
		return m, nil, fmt.Errorf("make the machine's disk: %w: %s", err, text)
	}
	if err := os.MkdirAll(o.logs, 0o755); err != nil {
		return m, nil, err
	}
	i := image{programs: programs{dir: dir, arch: arch}, kernelDir: kernel.Dir, release: r}
	if err := i.goTool(ctx, "build", "-o", i.file(initName), "./test/cmd/matrix"); err != nil {
		return m, nil, err
	}
	if lacking, err = i.lacking(); err != nil {
		return m, nil, err
	}
	initramfs := filepath.Join(dir, "initramfs")
	parameters := computerVariable + "=yes"
	if o.userMode {
		parameters += " ubd0=" + disk
	}
	return machine{
		target: t, qemu: qemu, kernel: vmlinuz, cpus: o.cpus, memory: o.memory, kvm: o.kvm, userMode: o.userMode, live: out,
		console:    filepath.Join(o.logs, "run-"+r.series+"-console.log"),
		image:      func(jobs []job) (string, error) { return initramfs, i.write(initramfs, jobs) },
		devices:    []string{"-drive", "if=virtio,format=raw,cache=unsafe,file=" + disk},
		parameters: parameters,
	}, lacking, nil
}

// fileServer is a process that shows this computer's files to a machine.
type fileServer struct {
	*exec.Cmd
	socket string
}

// shareFiles starts a server at a socket.
func shareFiles(ctx context.Context, socket string) (*fileServer, error) {
	path, err := findVirtiofsd()
	if err != nil {
		return nil, err
	}
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: socket})
	if err != nil {
		return nil, err
	}
	defer l.Close()
	l.SetUnlinkOnClose(false)
	listening, err := l.File()
	if err != nil {
		return nil, err
	}
	defer listening.Close()
	const firstFile = "3" // of ExtraFiles
	s := &fileServer{exec.CommandContext(ctx, path, "--fd="+firstFile, "-o", "source=/", "-o", "cache=always", "-o",
		"sandbox=chroot"), socket}
	s.ExtraFiles = []*os.File{listening}
	return s, s.Start()
}

// findVirtiofsd is where Debian's releases have the server: it comes with qemu up to bookworm.
func findVirtiofsd() (string, error) {
	for _, path := range []string{"/usr/lib/qemu/virtiofsd", "/usr/libexec/virtiofsd"} {
		if exists(path) {
			return path, nil
		}
	}
	return "", errors.New("no virtiofsd: install Debian's package qemu-system-common, or virtiofsd from trixie on")
}

// devices are those of a machine that sees the files: the server shares its memory.
func (s *fileServer) devices(memory int) []string {
	return []string{
		"-object", fmt.Sprintf("memory-backend-memfd,id=memory,size=%dM,share=on", memory), "-numa", "node,memdev=memory",
		"-chardev", "socket,id=files,path=" + s.socket, "-device", "vhost-user-fs-pci,chardev=files,tag=" + computerTag,
	}
}

// stop ends the server, which may have ended with its machine.
func (s *fileServer) stop() error {
	if err := s.Process.Kill(); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return err
	}
	_ = s.Wait() // it was killed
	return nil
}
