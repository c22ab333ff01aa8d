package main

import (
	"fmt"

	"github.com/spf13/pflag"

	"nftproxy/daemon/health"
)

// tlsFlags are the flags of a server's certificate and key. The fields metricsServerTLS and healthzServerTLS of a
// configuration file have the names that KEP-6038 proposes.
func tlsFlags(server string) (certificate, key string) {
	return ownPrefix + server + "-tls-cert-file", ownPrefix + server + "-tls-private-key-file"
}

func addTLS(f *pflag.FlagSet, server string, files *health.Files) {
	certificate, key := tlsFlags(server)
	f.StringVar(&files.Certificate, certificate, "", "`file` in PEM with the certificate of the "+server+" server, and those that it is signed by; the server serves HTTPS only then, and takes a renewed file at once; "+server+"ServerTLS.certFile in a configuration file")
	f.StringVar(&files.Key, key, "", "`file` in PEM with the key of that certificate; "+server+"ServerTLS.keyFile in a configuration file")
}

// checkTLS wants both files or none. Whether they can be used is seen while the process runs: they may come later.
func checkTLS(server string, files health.Files) error {
	certificate, key := tlsFlags(server)
	switch {
	case files.Certificate == "" && files.Key != "":
		return fmt.Errorf("--%s: %q: --%s is empty: want both files or none", key, files.Key, certificate)
	case files.Certificate != "" && files.Key == "":
		return fmt.Errorf("--%s: %q: --%s is empty: want both files or none", certificate, files.Certificate, key)
	}
	return nil
}
