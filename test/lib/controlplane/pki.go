package controlplane

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"time"
)

// pki holds the paths of a control plane's keys and certificates, all in PEM. Every key
// is ECDSA P-256, which takes microseconds to make. The certificates are valid for a
// year.
type pki struct {
	caCert, servingCert, servingKey            string
	kubeletClientCert, kubeletClientKey        string // of the API server as a client of kubelets
	serviceAccountKey, serviceAccountPublicKey string

	ca    *x509.Certificate
	caKey *ecdsa.PrivateKey
	caPEM []byte
}

// keyPair is a client's certificate and key in PEM, as a kubeconfig embeds them.
type keyPair struct{ cert, key []byte }

// newPKI writes to dir a certificate authority, the API server's certificate for the
// given names and addresses, and the key that signs service-account tokens.
func newPKI(dir string, names []string, addrs []net.IP) (pki, error) {
	p := pki{
		caCert:                  filepath.Join(dir, "ca.crt"),
		servingCert:             filepath.Join(dir, "apiserver.crt"),
		servingKey:              filepath.Join(dir, "apiserver.key"),
		kubeletClientCert:       filepath.Join(dir, "apiserver-kubelet-client.crt"),
		kubeletClientKey:        filepath.Join(dir, "apiserver-kubelet-client.key"),
		serviceAccountKey:       filepath.Join(dir, "service-account.key"),
		serviceAccountPublicKey: filepath.Join(dir, "service-account.pub"),
	}
	if err := p.makeAuthority(); err != nil {
		return pki{}, fmt.Errorf("make a certificate authority: %w", err)
	}
	serving, err := p.issue(&x509.Certificate{
		Subject:     pkix.Name{CommonName: apiServer},
		DNSNames:    names,
		IPAddresses: addrs,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	})
	if err != nil {
		return pki{}, fmt.Errorf("make the serving certificate: %w", err)
	}
	// In a kubeadm cluster too, this client is a member of the administrators' group.
	kubelets, err := p.client("kube-apiserver-kubelet-client", "system:masters")
	if err != nil {
		return pki{}, err
	}
	saKey, saPublic, err := signingKey()
	if err != nil {
		return pki{}, fmt.Errorf("make the service-account key: %w", err)
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return pki{}, fmt.Errorf("write certificates: %w", err)
	}
	for path, data := range map[string][]byte{
		p.caCert: p.caPEM, p.servingCert: serving.cert, p.servingKey: serving.key,
		p.kubeletClientCert: kubelets.cert, p.kubeletClientKey: kubelets.key,
		p.serviceAccountKey: saKey, p.serviceAccountPublicKey: saPublic,
	} {
		if err := os.WriteFile(path, data, 0o600); err != nil {
			return pki{}, fmt.Errorf("write certificates: %w", err)
		}
	}
	return p, nil
}

// client issues a certificate for a user and its groups.
func (p *pki) client(user string, groups ...string) (keyPair, error) {
	pair, err := p.issue(&x509.Certificate{
		Subject:     pkix.Name{CommonName: user, Organization: groups},
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	})
	if err != nil {
		return keyPair{}, fmt.Errorf("make a certificate for %s: %w", user, err)
	}
	return pair, nil
}

func (p *pki) makeAuthority() error {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	template := &x509.Certificate{
		Subject:               pkix.Name{CommonName: "test-ca"},
		IsCA:                  true,
		BasicConstraintsValid: true,
		KeyUsage:              x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature,
	}
	if err := completeCertificate(template); err != nil {
		return err
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		return err
	}
	if p.ca, err = x509.ParseCertificate(der); err != nil {
		return err
	}
	p.caKey, p.caPEM = key, encodePEM("CERTIFICATE", der)
	return nil
}

func (p *pki) issue(template *x509.Certificate) (keyPair, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return keyPair{}, err
	}
	template.KeyUsage = x509.KeyUsageDigitalSignature
	if err := completeCertificate(template); err != nil {
		return keyPair{}, err
	}
	der, err := x509.CreateCertificate(rand.Reader, template, p.ca, &key.PublicKey, p.caKey)
	if err != nil {
		return keyPair{}, err
	}
	keyDER, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		return keyPair{}, err
	}
	return keyPair{cert: encodePEM("CERTIFICATE", der), key: encodePEM("EC PRIVATE KEY", keyDER)}, nil
}

// completeCertificate sets the fields that every certificate needs. The certificate is
// valid from an hour ago, since a clock may be set back.
func completeCertificate(template *x509.Certificate) error {
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 127))
	if err != nil {
		return err
	}
	now := time.Now()
	template.SerialNumber, template.NotBefore, template.NotAfter = serial, now.Add(-time.Hour), now.AddDate(1, 0, 0)
	return nil
}

// signingKey makes a key pair that is not certified by anyone.
func signingKey() (private, public []byte, err error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, err
	}
	privateDER, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		return nil, nil, err
	}
	publicDER, err := x509.MarshalPKIXPublicKey(&key.PublicKey)
	if err != nil {
		return nil, nil, err
	}
	return encodePEM("EC PRIVATE KEY", privateDER), encodePEM("PUBLIC KEY", publicDER), nil
}

func encodePEM(kind string, der []byte) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der})
}
